package policy

// Evidence says what is kept as evidence of what a sandbox does.
type Evidence struct {
	Output int64 // of each stream of a command's output, in bytes; 0 is none
}

// DefaultOutput is how much of each stream of a command's output is kept where nobody says:
// the first half has what a build or test was, the last half why it failed.
const DefaultOutput = 256 << 10

// DefaultEvidence is what is kept where nobody says anything.
func DefaultEvidence() Evidence { return Evidence{Output: DefaultOutput} }
