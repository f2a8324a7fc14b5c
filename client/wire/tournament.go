package wire

// TournamentRequest asks for a tournament of commands: each runs in its own fork, followed by the test.
type TournamentRequest struct {
	// a reference to the snapshot to fork; "" is HEAD, after a capture of the live state
	Base string `json:"base,omitempty"`
	Test string `json:"test"` // a shell command: exit code 0 passes
	// a shell command whose output ends with a number; higher is better
	Score      string      `json:"score,omitempty"`
	Candidates []Candidate `json:"candidates"`           // the commands, at least one
	Jobs       int         `json:"jobs,omitempty"`       // maximum concurrent candidates; 0 lets the daemon choose
	TimeoutMS  int64       `json:"timeout_ms,omitempty"` // timeout of each candidate with its test and score; 0 is none
	Keep       bool        `json:"keep,omitempty"`       // rewind the sandbox to the winner's snapshot

	Policy []PolicyFile `json:"policy,omitempty"` // for the forks; see ForkRequest
}

// Candidate is one command of a tournament.
type Candidate struct {
	Name string `json:"name,omitempty"` // unique display name; "" is its number, starting at 1
	Cmd  string `json:"cmd"`            // a shell command
}

// TournamentBranch is the result of one candidate.
type TournamentBranch struct {
	Name    string `json:"name"`         // name of the candidate
	Cmd     string `json:"cmd"`          // the shell command
	Sandbox string `json:"sandbox"`      // name of its fork, which gc removes
	ID      string `json:"id,omitempty"` // ID of its fork
	// the snapshot after the candidate and before the test; the base if nothing changed
	Node string `json:"node"`
	Exit int    `json:"exit"` // exit code of the candidate; 124 timeout, 125 if it could not be run
	// exit code of the test, likewise; 124 also if the candidate used up the time
	TestExit int      `json:"test_exit"`
	Score    *float64 `json:"score,omitempty"` // the number that score printed
	TimeMS   int64    `json:"time_ms"`         // total of candidate, test and score
	Paths    int      `json:"paths"`           // number of paths that the candidate changed
	Bytes    int64    `json:"bytes"`           // content bytes of files that it added and changed
	Tail     string   `json:"tail,omitempty"`  // end of the output of its commands, if one failed
}

// TournamentResult is the outcome of a tournament. The winner's snapshot is a branch in the sandbox's own history.
type TournamentResult struct {
	Base       string             `json:"base"`        // the snapshot that all candidates started from
	Branches   []TournamentBranch `json:"branches"`    // in the order of the candidates
	Winner     string             `json:"winner"`      // name of the winner; "" if none passed the test
	WinnerNode string             `json:"winner_node"` // the winner's snapshot
	Head       string             `json:"head"`        // the sandbox's HEAD afterwards
}
