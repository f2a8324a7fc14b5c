package cli

import (
	"context"

	"github.com/coppice-dev/coppice/internal/removal"
)

// removeTree removes a directory whose files sandboxes may have written.
func removeTree(ctx context.Context, dir string) error { return removal.Tree(ctx, dir) }
