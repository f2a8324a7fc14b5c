//go:build linux

package cli_test

import (
	"testing"

	"github.com/coppice-dev/coppice/internal/npmtest"
)

// example is where the example with Claude Code lies; its package.json is what
// names the version.
const example = "../../examples/claude-code"

// claudeProgram is the agent's program, below where it is installed.
const claudeProgram = "node_modules/.bin/claude"

// claudeCode gives the directory in which Claude Code is installed.
func claudeCode(t *testing.T) string {
	t.Helper()
	return npmtest.Install(t, example, "@anthropic-ai/claude-code")
}
