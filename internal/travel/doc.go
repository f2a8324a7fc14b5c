//go:build linux

// Package travel transfers proposals between users through the remotes of a git repository. It determines what the
// user's git pushes (Travel.Sending), checks what the user's git fetched before it is used (Travel.Receive), and
// shows and applies pulled proposals like the changes of a local sandbox (Travel.PulledDiff, Travel.PulledApply). The
// layers of a sandbox can be transferred with its proposal, in the repository or through a registry: Travel packs
// them (Travel.PackLayer), and creates a sandbox with the same history from them (Travel.UnpackLayers). It has
// neither credentials nor network access: git and the user's program do what needs them.
//
// Travel has no lock and no state in memory. Proposals in transfer are references of the user's repository: see
// refs.go for their names. While Travel reads layers, it holds Config.Keep, so that no layer is removed. It
// acquires the lock of the sandbox into which it imports layers before that.
//
// It requires these interfaces of the engine: API creates and removes sandboxes, as any client can; Sandboxes
// locks a sandbox, and opens its repository and its layers; Stacks names layers while they are created. The
// engine implements all three; the package never imports the engine. Records are written to the ledger through an
// audit.Book, and proposals are compared and applied by a gitwork.Git.
package travel
