package wire

// TournamentRequest asks for a tournament of commands: each runs in its own fork, followed by the test.
type TournamentRequest struct {
	Base string `json:"base,omitempty"` // a reference; "" is HEAD, after a capture of the present
	Test string `json:"test"`           // a shell command: exit code 0 passes
	// a shell command that ends its stdout with a number, the higher the better
	Score      string      `json:"score,omitempty"`
	Candidates []Candidate `json:"candidates"`           // the commands, at least one
	Jobs       int         `json:"jobs,omitempty"`       // how many run at once; 0 lets the daemon choose
	TimeoutMS  int64       `json:"timeout_ms,omitempty"` // for each candidate with its test and score; 0: none
	Keep       bool        `json:"keep,omitempty"`       // rewind the sandbox to the winner's snapshot

	Policy []PolicyFile `json:"policy,omitempty"` // for the forks; see ForkRequest
}

// Candidate is one of the commands.
type Candidate struct {
	Name string `json:"name,omitempty"` // unique display name; "" is its number, from 1
	Cmd  string `json:"cmd"`            // a shell command
}

// TournamentBranch is the result of one candidate.
type TournamentBranch struct {
	Name    string `json:"name"`         // of the candidate
	Cmd     string `json:"cmd"`          // its shell command
	Sandbox string `json:"sandbox"`      // the name of its fork, which gc removes
	ID      string `json:"id,omitempty"` // the id of its fork
	// the snapshot after the candidate and before the test; the base when nothing changed
	Node string `json:"node"`
	Exit int    `json:"exit"` // exit code of the candidate; 124 timeout, 125 when it could not be run
	// exit code of the test, likewise; 124 when the candidate took all of the time
	TestExit int      `json:"test_exit"`
	Score    *float64 `json:"score,omitempty"` // what score printed
	TimeMS   int64    `json:"time_ms"`         // total of candidate, test and score
	Paths    int      `json:"paths"`           // how many paths the candidate changed
	Bytes    int64    `json:"bytes"`           // content bytes of what it added and changed
	Tail     string   `json:"tail,omitempty"`  // the end of what its commands printed, when one of them failed
}

// TournamentResult is the outcome. The winner's snapshot is a branch of the
// sandbox's own history.
type TournamentResult struct {
	Base       string             `json:"base"`        // the snapshot that all started from
	Branches   []TournamentBranch `json:"branches"`    // in the order of the candidates
	Winner     string             `json:"winner"`      // name of the candidate; "" when none passed the test
	WinnerNode string             `json:"winner_node"` // the winner's snapshot
	Head       string             `json:"head"`        // where the sandbox's HEAD is now
}
