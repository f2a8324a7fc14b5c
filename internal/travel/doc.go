//go:build linux

// Package travel takes proposals from one user to another by the remotes of a git repository. It says
// what the user's git pushes (Travel.Sending), checks what the user's git fetched before anything is
// made of it (Travel.Receive), and shows and applies what was pulled in the same ways as what a sandbox
// of this host did (Travel.PulledDiff, Travel.PulledApply). The layers of a sandbox can travel with its
// proposal, in the repository or by a registry: Travel packs them (Travel.PackLayer), and makes a
// sandbox with the same history of them (Travel.UnpackLayers). It has neither credentials nor network:
// git and the user's program do what needs them.
//
// Travel has no lock and no state in memory. What travels is in references of the user's repository: see
// refs.go for their names. While it reads layers, it holds Config.Keep, so that none is removed; the
// lock of the sandbox into which it imports layers is taken before that.
//
// It needs the engine for little. API has what any client can do: to create and to remove a sandbox.
// Sandboxes has what no client can do: to lock a sandbox, and to open its repository and its layers.
// Stacks names layers while they are made. The engine implements all three; the package never imports
// the engine. Records go into the ledger through an audit.Book, and proposals are compared and applied
// by a gitwork.Git.
package travel
