//go:build linux

package cli_test

import (
	"testing"

	"github.com/coppice-dev/coppice/internal/npmtest"
)

// example is the directory of the example with Claude Code. Its package.json has the version.
const example = "../../examples/claude-code"

// claudeProgram is the path of the agent's program in its installation.
const claudeProgram = "node_modules/.bin/claude"

// claudeCode returns the directory in which Claude Code is installed.
func claudeCode(t *testing.T) string {
	t.Helper()
	return npmtest.Install(t, example, "@anthropic-ai/claude-code")
}
