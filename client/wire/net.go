package wire

import (
	"net"
	"strconv"
	"time"
)

// The kinds of a NetEvent. More may be added.
const (
	NetDNS     = "dns"     // a name was looked up outside
	NetConnect = "connect" // a connection was dialled, or a UDP flow started
	NetDeny    = "deny"    // something was refused
	NetEnd     = "end"     // a connection or flow ended, or a lookup returned no address
	NetPolicy  = "policy"  // another policy is in force from here on
	NetHTTP    = "request" // an HTTP request was forwarded
	NetAnswer  = "answer"  // an HTTP request was answered
	NetAsk     = "ask"     // a request is pending or was settled; see Verdict
	NetDecoy   = "decoy"   // a decoy was opened, or one of its tokens was sent to the gate
)

// NetRefused is a refused system call. Such events are in the same journal, and are returned only if requested by
// this kind.
const NetRefused = "refused"

// The reasons of a NetRefused without a Syscall. Other reasons are the error that was returned.
const (
	RefusedKilled = "the command was ended by SIGSYS, as a call of another architecture is"
	RefusedUntold = "more system calls were refused than could be recorded one by one" // Count is their number
	RefusedFiles  = "more files were refused than could be recorded one by one"        // the same for files
)

// The operations on a refused file: NetEvent.Op.
const (
	FileRead    = "read"    // open for reading, or list
	FileWrite   = "write"   // open for writing, or truncate
	FileExecute = "execute" // start as a program
	FileEnter   = "enter"   // make it the working directory
	FileCreate  = "create"  // a file, directory, link or node
	FileRemove  = "remove"
	FileRename  = "rename"
	FileChange  = "change" // its mode, owner, times or attributes
)

// What refused a file: NetEvent.Rule of a NetRefused with an Op.
const (
	RuleHidden     = "hidden"     // the policy hides the path: it does not exist
	RuleReadOnly   = "read-only"  // it cannot be changed: a read-only path or mount
	RulePermission = "permission" // it belongs to another user than the caller's
)

// The verdicts of a NetEvent.
const (
	VerdictAllow = "allow"
	VerdictDeny  = "deny"
	VerdictAsk   = "ask"
	VerdictStop  = "stop" // all processes of the sandbox were killed
)

// The reasons of a NetDecoy.
const (
	DecoyOpened = "opened"
	DecoySent   = "a token of it was to be sent"
	DecoyAsked  = "a token of it is in a name that was asked for"
	DecoyMany   = "decoys were opened more often than could be counted"
)

// NetDropped is the reason of a NetDeny that counts packets whose destinations are unknown.
const NetDropped = "packets were dropped before the gate had read them"

// NetRulesEnded is the reason of a NetPolicy after temporary rules expired.
const NetRulesEnded = "rules that held for a time have ended"

// NetEvent is an event between a sandbox and the network. Name is chosen by a process inside and must not be trusted.
type NetEvent struct {
	Time time.Time `json:"time"` // when it happened
	// "dns", "connect", "request", "answer", "deny", "end", "policy", "ask", "decoy"; and "refused", if requested;
	// more may be added
	Kind  string `json:"kind"`
	Proto string `json:"proto,omitempty"` // "tcp", "udp", "icmp"; denied events may have others
	Name  string `json:"name,omitempty"`  // host name of the destination
	Addr  string `json:"addr,omitempty"`  // address, if known
	Port  int    `json:"port,omitempty"`  // port, if known
	// decision: "allow", "deny"; with "ask" also "ask": it is pending; with "decoy" also "stop": all processes were
	// killed
	Verdict string `json:"verdict,omitempty"`
	Rule    string `json:"rule,omitempty"`   // the rule that decided, if any; with "policy", the added rules
	Reason  string `json:"reason,omitempty"` // reason of the decision
	Hint    string `json:"hint,omitempty"`   // how to change the decision
	// the rule, in short form, that would allow the denied address
	Fix string `json:"fix,omitempty"`
	// with "decoy": its path inside; the other fields are where a token was to be sent
	Decoy  string `json:"decoy,omitempty"`
	Method string `json:"method,omitempty"` // of an inspected HTTP request
	// of an inspected HTTP request, as sent, without the query; with "refused": the file
	Path   string `json:"path,omitempty"`
	Status int    `json:"status,omitempty"` // status of the response: the server's, or with "deny" the gate's
	In     int64  `json:"in,omitempty"`     // with "end" and "answer": bytes received by the sandbox
	Out    int64  `json:"out,omitempty"`    // with "end" and "answer": bytes sent by the sandbox
	// with "request": names of the grants whose secrets it carried; with "deny": of the grant that refused it
	Grants  []string `json:"grants,omitempty"`
	Count   int      `json:"count,omitempty"`   // number of occurrences, if more than one
	Policy  string   `json:"policy,omitempty"`  // digest of the policy that was in force
	Syscall string   `json:"syscall,omitempty"` // with "refused": the system call, if known
	Program string   `json:"program,omitempty"` // with "refused": the calling program
	Op      string   `json:"op,omitempty"`      // with "refused": what the caller wanted to do with the file
	PID     int      `json:"pid,omitempty"`     // with "refused": process ID inside of the first caller
	Exec    string   `json:"exec,omitempty"`    // with "refused": ID of the command it belongs to
	// with an "ask" about a grant: "grant:" and the ID of the request; Grants, Method and Path tell what it is about
	Question string `json:"question,omitempty"`
	// with a pending "ask": when it is denied if unanswered
	Until time.Time `json:"until,omitzero"`
	First time.Time `json:"first,omitzero"` // with "refused" and Op: the time of the first of Count occurrences
	Last  time.Time `json:"last,omitzero"`  // the same of the last of them
}

// GrantQuestion is the beginning of the NetQuestion.Place of a request that would carry the secret of a grant.
const GrantQuestion = "grant:"

// Place returns the destination of ev as a rule in short form; "" if it is not known. For a question about a grant it
// is NetQuestion.Place.
func (ev NetEvent) Place() string {
	if ev.Question != "" {
		return ev.Question
	}
	host := ev.Name
	if host == "" {
		host = ev.Addr
	}
	if ev.Port != 0 {
		host = net.JoinHostPort(host, strconv.Itoa(ev.Port))
	}
	switch {
	case host == "", ev.Proto == "", ev.Proto == "tcp", ev.Proto == "dns":
		return host
	}
	return ev.Proto + "://" + host
}

// NetNow is the current state of the network of a running sandbox.
type NetNow struct {
	Conns      int   `json:"conns"`                 // open connections
	Flows      int   `json:"flows"`                 // active UDP flows
	In         int64 `json:"in"`                    // bytes received by the sandbox since its start
	Out        int64 `json:"out"`                   // bytes sent by the sandbox since its start
	EventsLost int64 `json:"events_lost,omitempty"` // events lost for lack of space

	Asking []NetQuestion `json:"asking,omitempty"` // pending requests, oldest first
}

// NetQuestion is a pending request: a destination that no rule decides about, with all connections that wait for it.
type NetQuestion struct {
	// HOST, if a name is looked up and the port is not known yet; HOST:PORT; udp://HOST:PORT; grant:ID for an HTTP request
	// that would carry a secret
	Place   string    `json:"place"`
	Proto   string    `json:"proto"`            // "dns", "tcp", "udp"
	Name    string    `json:"name,omitempty"`   // host name; empty for an address that no name was resolved to
	Addr    string    `json:"addr,omitempty"`   // that address
	Port    int       `json:"port,omitempty"`   // not with "dns"
	Since   time.Time `json:"since"`            // when it became pending
	Until   time.Time `json:"until"`            // when it is denied if unanswered
	Waiting int       `json:"waiting"`          // number of waiting queries and connections
	Grant   string    `json:"grant,omitempty"`  // the grant whose secret the request would carry
	Method  string    `json:"method,omitempty"` // method of that request, or of the first of those that wait
	Path    string    `json:"path,omitempty"`   // path of that request, without the query
}

// NetAsking lists pending requests.
type NetAsking struct {
	Asking []NetQuestion `json:"asking"` // oldest first
}

// AnswerRequest approves or denies pending requests, and later ones, by adding rules.
type AnswerRequest struct {
	// in the short form, as in example.com:443; or places of requests that would carry a secret, such as grant:ID, without
	// other rules: these answers add no rule
	Rules []string `json:"rules"`
	ForMS int64    `json:"for_ms,omitempty"` // duration; 0 is permanent; not with grant:ID
}

// AnswerResult is the policy after an AnswerRequest.
type AnswerResult struct {
	AllowResult
	Settled []NetQuestion `json:"settled"` // the pending requests that were settled
}

// NetRequest selects network events of a sandbox.
type NetRequest struct {
	Last  int       `json:"last,omitempty"`  // the newest N; 0 is 100, -1 is all stored events
	Since time.Time `json:"since,omitzero"`  // only events since then
	Kinds []string  `json:"kinds,omitempty"` // only these kinds
}

// NetResult is the stored network events of a sandbox, and the current state of its network.
type NetResult struct {
	Events []NetEvent `json:"events"`           // oldest first
	Now    *NetNow    `json:"now,omitempty"`    // set if the sandbox runs and has a gate
	Policy string     `json:"policy,omitempty"` // digest of the policy in force
}

// AllowRequest changes the network rules of a sandbox, immediately if it is running.
type AllowRequest struct {
	Allow []string `json:"allow,omitempty"`  // rules in the short form, as in example.com:443
	Deny  []string `json:"deny,omitempty"`   // likewise; deny rules take precedence
	ForMS int64    `json:"for_ms,omitempty"` // duration; 0 is permanent
	// allow rules to remove, from any level, in short form or as in the policy; cannot be combined with rules to add
	RemoveAllow []string `json:"remove_allow,omitempty"`
	RemoveDeny  []string `json:"remove_deny,omitempty"` // deny rules to remove, likewise
}

// AllowResult is the policy after an AllowRequest.
type AllowResult struct {
	Policy   string     `json:"policy"`             // digest of the policy in force
	Until    *time.Time `json:"until,omitempty"`    // when the rules expire; none is never
	Live     bool       `json:"live"`               // it applies to running processes; otherwise from the next start
	Warnings []string   `json:"warnings,omitempty"` // possible mistakes in the rules
}

// WhyRequest asks how the policy decides about a destination.
type WhyRequest struct {
	// HOST[:PORT], with the prefix udp:// for UDP; the default port is 443
	Host   string `json:"host"`
	Method string `json:"method,omitempty"` // of an HTTP request, such as GET
	Path   string `json:"path,omitempty"`   // of an HTTP request
}

// WhyResult is the decision about a destination, and its reason. No connection is made.
type WhyResult struct {
	Place string `json:"place"` // the destination, in full
	// "allow", "deny", "inspect" or "ask"; "inspect" lets HTTP connect, and decides about each request
	Verdict string     `json:"verdict"`
	Rule    string     `json:"rule,omitempty"`   // the rule that decides, if any
	At      string     `json:"at,omitempty"`     // where the rule was defined
	Reason  string     `json:"reason"`           // reason of the decision
	Hint    string     `json:"hint,omitempty"`   // the line of a policy that would change it
	Allow   bool       `json:"allow,omitempty"`  // an AllowRequest with Place would change it
	Until   *time.Time `json:"until,omitempty"`  // when another policy takes effect; none is never
	Policy  string     `json:"policy,omitempty"` // digest of the policy that decides
	Denies  bool       `json:"denies,omitempty"` // the rule is a deny rule: removing it may change the decision
	// an AllowRequest with this rule would change it, but one with Place would not
	Fix string `json:"fix,omitempty"`
}
