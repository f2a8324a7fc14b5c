package httpapi

import (
	"maps"
	"math"
	"time"

	bound "github.com/coppice-dev/coppice/internal/limit"
)

// limit is what a value in a request is held to, and one that is good. It is for
// readers of the document alone: huma does not check it, so that whoever refuses a
// value says in its own words how to mend it.
type limit struct {
	enum               []any
	pattern            string
	least, most        *int64 // of a number
	minLength, maxText int    // of a text, in characters; 0: none
	minItems, maxItems int    // of a list; 0: none
	example            any
}

// schema gives a limit as JSON Schema has it; nil when there is none.
func (l limit) schema() map[string]any {
	out := map[string]any{}
	counts := map[string]int{
		"minLength": l.minLength, "maxLength": l.maxText, "minItems": l.minItems, "maxItems": l.maxItems,
	}
	for key, n := range counts {
		if n != 0 {
			out[key] = n
		}
	}
	if l.enum != nil {
		out["enum"] = l.enum
	}
	if l.pattern != "" {
		out["pattern"] = l.pattern
	}
	if l.least != nil {
		out["minimum"] = *l.least
	}
	if l.most != nil {
		out["maximum"] = *l.most
	}
	if l.example != nil {
		out["examples"] = []any{l.example}
	}
	if len(out) == 0 {
		return nil
	}
	return out
}

// within is a number's limit.
func within(least, most int64) limit { return limit{least: &least, most: &most} }

// atLeast is a number's limit from below.
func atLeast(n int64) limit { return limit{least: &n} }

// one is one of these words.
func one(of ...any) limit { return limit{enum: of} }

// eg adds an example.
func (l limit) eg(v any) limit {
	l.example = v
	return l
}

const (
	// aName is the name of a sandbox, and aTag that of a tag, as package timeline
	// takes them, but for what looks like an id.
	aName = `^([a-z0-9][a-z0-9_.-]{0,62})?$`
	aTag  = `^[a-z0-9][a-z0-9_.-]{0,62}$`

	week = 7 * 24 * time.Hour
)

// aLife is the limit of how long something lives, in milliseconds.
func aLife() limit { return within(0, bound.Life.Milliseconds()).eg(time.Hour.Milliseconds()) }

// anArgv is the example of a command, and anEnv that of variables.
func anArgv() limit { return limit{example: []any{"make", "test"}} }
func anEnv() limit  { return limit{example: []any{"LANG=C.UTF-8"}} }

// limits are those of the fields of requests, as Type.field, and of parameters, by
// name. A test sends what is beyond each to a real daemon.
func limits() map[string]limit {
	all := map[string]limit{}
	for _, part := range limitsByGroup() {
		maps.Copy(all, part)
	}
	return all
}

// limitsByGroup are the parts of limits. No field or parameter is in two of them.
func limitsByGroup() []map[string]limit {
	return []map[string]limit{
		limitsOfSandboxes(), limitsOfCommands(), limitsOfFiles(), limitsOfHistory(), limitsOfTournaments(),
		limitsOfProposals(), limitsOfAccess(), limitsOfProblems(), limitsOfParameters(),
	}
}

// limitsOfSandboxes are those of what makes a sandbox, and of its life.
func limitsOfSandboxes() map[string]limit {
	return map[string]limit{
		"CreateRequest.name":         {pattern: aName, example: "web-1"},
		"CreateRequest.driver":       one("", "auto", "overlay", "copy", "btrfs"),
		"CreateRequest.tier":         one("", "auto", "workspace", "process", "supervised", "gvisor"),
		"CreateRequest.net":          one("", "off", "rules", "host"),
		"CreateRequest.self":         one("", "off", "read", "rewind"),
		"CreateRequest.env":          anEnv(),
		"CreateRequest.user":         {example: "root"},
		"CreateRequest.limits":       {example: "memory=4GiB,pids=512"},
		"CreateRequest.keep_recent":  atLeast(0),
		"CreateRequest.keep_for_ms":  atLeast(0),
		"CreateRequest.ttl_ms":       aLife(),
		"CreateRequest.idle_stop_ms": aLife(),
		"CreateRequest.policy":       {maxItems: 64},
		"PolicyFile.level":           one("user", "project", "flags"),
		"PolicyFile.name":            {pattern: `^(/|--)`, example: "/srv/project/coppice.yaml"},
		"PolicyFile.text":            {example: "version: 1\nnetwork: {presets: [pypi]}\n"},
		"Source.kind":                one("", "host", "host-copy", "dir", "tar", "sandbox"),
		"Source.path":                {example: "/srv/project"},
		"Source.ref":                 {example: "HEAD~1"},
		"LifeRequest.ttl_ms":         aLife(),
		"LifeRequest.idle_stop_ms":   aLife(),
		"CreateRequest.labels":       {example: object{"team": "web"}},
		"LifeRequest.labels":         {example: object{"team": "web"}},
		"LifeRequest.remove_labels":  {example: []any{"team"}},
	}
}

// limitsOfCommands are those of what runs commands.
func limitsOfCommands() map[string]limit {
	return map[string]limit{
		"ExecRequest.cmd":    anArgv(),
		"ExecRequest.env":    anEnv(),
		"ExecRequest.dir":    {example: "/src"},
		"Size.cols":          within(0, math.MaxUint16).eg(80),
		"Size.rows":          within(0, math.MaxUint16).eg(24),
		"Signal.name":        {minLength: 1, example: "INT"},
		"ProcessSignal.name": {example: "INT"},
		"RunRequest.cmd":     {minItems: 1, example: anArgv().example},
		"RunRequest.env":     anEnv(),
		"RunRequest.dir":     {example: "/src"},
		"RunRequest.restart": one("", "no", "on-rewind", "always"),
		"Capture.quiet_ms":   within(0, (24 * time.Hour).Milliseconds()),
		"Capture.max_ms":     within(0, (24 * time.Hour).Milliseconds()),
	}
}

// limitsOfFiles are those of what changes files.
func limitsOfFiles() map[string]limit {
	return map[string]limit{
		"MkdirRequest.path": {example: "/src"},
		"MkdirRequest.mode": within(0, 0o7777),
		"MoveRequest.from":  {example: "/src/old.go"},
		"MoveRequest.to":    {example: "/src/new.go"},
	}
}

// limitsOfHistory are those of snapshots, moves and forks.
func limitsOfHistory() map[string]limit {
	return map[string]limit{
		"CommitRequest.message": {example: "the tests pass"},
		"MarkRequest.phase":     one("", "begin", "end"),
		"MarkRequest.label":     {example: "refactor the parser"},
		"CheckoutRequest.node":  {minLength: 1, example: "HEAD~1"},
		"UndoRequest.n":         atLeast(0),
		"TagRequest.name":       {pattern: aTag, example: "good"},
		"TagRequest.ref":        {example: "HEAD"},
		"ForkRequest.n":         within(0, 10_000),
		"ForkRequest.names":     {maxItems: 10_000, example: []any{"try-1", "try-2"}},
		"ForkRequest.at":        {example: "HEAD"},
		"ForkRequest.policy":    {maxItems: 64},
		"ForkRequest.labels":    {example: object{"team": "web"}},
		"ForkRequest.tier":      one("", "process", "supervised", "gvisor"),
		"Keep.last":             atLeast(0),
		"Keep.within_ms":        atLeast(0),
		"Keep.hourly":           within(0, 10_000),
		"Keep.daily":            within(0, 10_000),
		"Keep.weekly":           within(0, 10_000),
	}
}

// limitsOfTournaments are those of tournaments.
func limitsOfTournaments() map[string]limit {
	return map[string]limit{
		"TournamentRequest.base":       {example: "HEAD"},
		"TournamentRequest.test":       {minLength: 1, example: "make test"},
		"TournamentRequest.candidates": {minItems: 1, maxItems: 1000},
		"TournamentRequest.jobs":       atLeast(0),
		"TournamentRequest.policy":     {maxItems: 64},
		"TournamentRequest.timeout_ms": atLeast(0),
		"Candidate.cmd":                {minLength: 1, example: "git apply /patches/1.diff"},
	}
}

// limitsOfProposals are those of proposals and trials.
func limitsOfProposals() map[string]limit {
	return map[string]limit{
		"ProposeRequest.title":      {maxText: 200, example: "Refuse empty tokens"},
		"ProposeRequest.tests":      {maxItems: 64, example: []any{"make test"}},
		"ProposeRequest.timeout_ms": atLeast(0),
		"RebaseRequest.onto":        {example: "main"},
		"TrialRequest.cmd":          {minLength: 1, example: "make test"},
		"TrialRequest.at":           {example: "HEAD"},
		"TrialRequest.timeout_ms":   atLeast(0),
	}
}

// limitsOfAccess are those of tokens, links to ports and rules for the network.
func limitsOfAccess() map[string]limit {
	return map[string]limit{
		"TokenRequest.name":      {minLength: 1, maxText: 64, example: "ci"},
		"TokenRequest.scope":     one("", "read", "operate", "admin"),
		"TokenRequest.sandboxes": {example: []any{"web-1"}},
		"TokenRequest.ttl_ms":    aLife(),
		"PreviewRequest.ttl_ms":  within(0, week.Milliseconds()).eg(time.Hour.Milliseconds()),

		"AllowRequest.allow":        {maxItems: 100, example: []any{"example.com:443"}},
		"AllowRequest.deny":         {maxItems: 100, example: []any{"tracker.example.com"}},
		"AllowRequest.for_ms":       aLife(),
		"AllowRequest.remove_allow": {maxItems: 100},
		"AllowRequest.remove_deny":  {maxItems: 100},

		"AnswerRequest.rules":  {minItems: 1, maxItems: 100, example: []any{"example.com:443"}},
		"AnswerRequest.for_ms": aLife(),
	}
}

// limitsOfProblems are those of errors.
func limitsOfProblems() map[string]limit {
	return map[string]limit{
		"Problem.kind": {example: "not_found"},
		"Problem.hint": {example: "list them: coppice ls"},
	}
}

// limitsOfParameters are those of parameters in path, query and header.
func limitsOfParameters() map[string]limit {
	return map[string]limit{
		"name":            {example: "web-1"},
		"ref":             {example: "HEAD"},
		"path":            {example: "/src/main.go"},
		"tag":             {example: "good"},
		"exec":            {example: "x0f3c9a1b2d"},
		"pid":             atLeast(1).eg(2),
		"port":            within(1, math.MaxUint16).eg(3000),
		"last":            within(-1, 1_000_000),
		"host":            {minLength: 1, example: "example.com:443"},
		"filter":          {example: []any{"label=team=web", "state=running"}},
		"mode":            {pattern: `^0*[0-7]{1,4}$`},
		"Idempotency-Key": {pattern: `^[!-~]*$`, maxText: maxKey},
	}
}
