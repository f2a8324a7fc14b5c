package cli

// reexec runs what a re-executed process is, by argv[0]; ok is false for the
// command line.
func reexec([]string) (code int, ok bool) { return 0, false }
