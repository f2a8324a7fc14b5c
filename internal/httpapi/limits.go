package httpapi

import (
	"maps"
	"math"
	"time"

	bound "github.com/coppice-dev/coppice/internal/limit"
)

// limit documents the valid values of a field or parameter, with an example. It is only for readers of the
// document: huma does not check it, so that the code that refuses a value can say how to fix it.
type limit struct {
	enum               []any
	pattern            string
	least, most        *int64 // bounds of a number
	minLength, maxText int    // of a text, in characters; 0: none
	minItems, maxItems int    // of a list; 0: none
	example            any
}

// schema returns the limit as JSON Schema; nil if there is none.
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

// within limits a number to a range.
func within(least, most int64) limit { return limit{least: &least, most: &most} }

// atLeast limits a number from below.
func atLeast(n int64) limit { return limit{least: &n} }

// one limits a value to one of these words.
func one(of ...any) limit { return limit{enum: of} }

// eg adds an example.
func (l limit) eg(v any) limit {
	l.example = v
	return l
}

const (
	// aName matches the name of a sandbox, and aTag a tag, as package timeline accepts them. timeline also
	// refuses names that look like IDs.
	aName = `^([a-z0-9][a-z0-9_.-]{0,62})?$`
	aTag  = `^[a-z0-9][a-z0-9_.-]{0,62}$`

	week = 7 * 24 * time.Hour
)

// aLife limits a lifetime, in milliseconds.
func aLife() limit { return within(0, bound.Life.Milliseconds()).eg(time.Hour.Milliseconds()) }

// anArgv has an example of a command, and anEnv one of variables.
func anArgv() limit { return limit{example: []any{"make", "test"}} }
func anEnv() limit  { return limit{example: []any{"LANG=C.UTF-8"}} }

// limits returns the limits of request fields, by Type.field, and of parameters, by name. A test sends values
// beyond each limit to a real daemon.
func limits() map[string]limit {
	all := map[string]limit{}
	for _, part := range limitsByGroup() {
		maps.Copy(all, part)
	}
	return all
}

// limitsByGroup returns the parts of limits. No field or parameter is in two of them.
func limitsByGroup() []map[string]limit {
	return []map[string]limit{
		limitsOfSandboxes(), limitsOfCommands(), limitsOfFiles(), limitsOfHistory(), limitsOfTournaments(),
		limitsOfProposals(), limitsOfAccess(), limitsOfProblems(), limitsOfParameters(),
	}
}

// limitsOfSandboxes are the limits for creating a sandbox, and for its lifetime.
func limitsOfSandboxes() map[string]limit {
	return map[string]limit{
		"CreateRequest.name":         {pattern: aName, example: "web-1"},
		"CreateRequest.driver":       one("", "auto", "overlay", "copy", "btrfs"),
		"CreateRequest.tier":         one("", "auto", "workspace", "process", "supervised", "container", "gvisor"),
		"CreateRequest.net":          one("", "off", "rules", "host"),
		"CreateRequest.self":         one("", "off", "read", "rewind"),
		"CreateRequest.env":          anEnv(),
		"CreateRequest.user":         {example: "root"},
		"CreateRequest.limits":       {example: "memory=4GiB,pids=512"},
		"CreateRequest.keep_recent":  atLeast(0),
		"CreateRequest.keep_for_ms":  within(0, bound.Life.Milliseconds()),
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

// limitsOfCommands are the limits for running commands.
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

// limitsOfFiles are the limits for changing files.
func limitsOfFiles() map[string]limit {
	return map[string]limit{
		"MkdirRequest.path": {example: "/src"},
		"MkdirRequest.mode": within(0, 0o7777),
		"MoveRequest.from":  {example: "/src/old.go"},
		"MoveRequest.to":    {example: "/src/new.go"},
	}
}

// limitsOfHistory are the limits for snapshots, rewinds and forks.
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
		"ForkRequest.grants":    one("", "none", "reissue"),
		"ForkRequest.tier":      one("", "process", "supervised", "container", "gvisor"),
		"Keep.last":             atLeast(0),
		"Keep.within_ms":        within(0, bound.Life.Milliseconds()),
		"Keep.hourly":           within(0, 10_000),
		"Keep.daily":            within(0, 10_000),
		"Keep.weekly":           within(0, 10_000),
	}
}

// limitsOfTournaments are the limits for tournaments.
func limitsOfTournaments() map[string]limit {
	return map[string]limit{
		"TournamentRequest.base":       {example: "HEAD"},
		"TournamentRequest.test":       {minLength: 1, example: "make test"},
		"TournamentRequest.candidates": {minItems: 1, maxItems: 1000},
		"TournamentRequest.jobs":       atLeast(0),
		"TournamentRequest.policy":     {maxItems: 64},
		"TournamentRequest.timeout_ms": within(0, bound.Life.Milliseconds()),
		"Candidate.cmd":                {minLength: 1, example: "git apply /patches/1.diff"},
	}
}

// limitsOfProposals are the limits for proposals and trials.
func limitsOfProposals() map[string]limit {
	return map[string]limit{
		"ProposeRequest.title":      {maxText: 200, example: "Refuse empty tokens"},
		"ProposeRequest.tests":      {maxItems: 64, example: []any{"make test"}},
		"ProposeRequest.timeout_ms": within(0, bound.Trial.Milliseconds()),
		"RebaseRequest.onto":        {example: "main"},
		"TrialRequest.cmd":          {minLength: 1, example: "make test"},
		"TrialRequest.at":           {example: "HEAD"},
		"TrialRequest.timeout_ms":   within(0, bound.Trial.Milliseconds()),
	}
}

// limitsOfAccess are the limits for tokens, links to ports and network rules.
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

// limitsOfProblems are examples of errors.
func limitsOfProblems() map[string]limit {
	return map[string]limit{
		"Problem.kind": {example: "not_found"},
		"Problem.hint": {example: "list them: coppice ls"},
	}
}

// limitsOfParameters are the limits for parameters in path, query and header.
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
