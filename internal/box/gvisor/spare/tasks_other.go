//go:build !linux || !(amd64 || arm64) || !go1.26 || go1.27

package spare

// tasks gives nothing: how this version of Go marks what is done is not known.
func tasks() []task { return nil }
