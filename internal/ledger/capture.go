package ledger

import (
	"encoding/base64"
	"fmt"

	"github.com/coppice-dev/coppice/internal/ledger/format"
)

// capture is a capture that must be placed, or was read from the intake.
type capture struct {
	id      format.Sandbox
	name    string
	content []byte
	waiting bool // for the next batch
}

func (c *capture) file() string { return captureFile(c.id, c.name) }

func captureFile(id format.Sandbox, name string) string {
	return dirBlobs + "/" + string(id) + "/" + name
}

// encode appends the line of a capture in the intake.
func (c *capture) encode(b []byte) []byte {
	return fmt.Appendf(b, "B %s %s %s\n", c.id, c.name, base64.StdEncoding.EncodeToString(c.content))
}

// parseCapture parses the words after the B of a line; nil if they are invalid.
func parseCapture(id, name, content []byte) *capture {
	c := &capture{id: format.Sandbox(id), name: string(name)}
	if _, err := format.ParseHash(c.name); err != nil || !c.id.Valid() {
		return nil
	}
	var err error
	if c.content, err = base64.StdEncoding.Strict().DecodeString(string(content)); err != nil {
		return nil
	}
	return c
}
