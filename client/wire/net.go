package wire

import (
	"net"
	"strconv"
	"time"
)

// The kinds of a NetEvent. More may come.
const (
	NetDNS     = "dns"     // a name was looked up outside
	NetConnect = "connect" // a connection was dialled, or a flow of datagrams begun
	NetDeny    = "deny"    // something was refused
	NetEnd     = "end"     // a connection or flow is over, or a lookup gave no address
	NetPolicy  = "policy"  // from here on another policy is in force
	NetHTTP    = "request" // an HTTP request was passed on
	NetAnswer  = "answer"  // that is over
	NetAsk     = "ask"     // a place waits for a person, by its verdict; else what came of that
	NetDecoy   = "decoy"   // a decoy was opened, or a token of it came to the gate
)

// NetRefused is the kind of what is in the journal besides, and told to those alone who ask
// for it by this kind: a system call was refused.
const NetRefused = "refused"

// Reasons of a NetRefused without a Syscall; others are the error that was answered.
const (
	RefusedKilled = "the command was ended by SIGSYS, as a call of another architecture is"
	RefusedUntold = "more system calls were refused than could be recorded one by one" // Count says how many
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

// NetRulesEnded is the reason of a NetPolicy that time alone brought about.
const NetRulesEnded = "rules that held for a time have ended"

// NetEvent is something that happened between a sandbox and the network. Name is
// what a process inside made of it.
type NetEvent struct {
	Time time.Time `json:"time"` // when it happened
	// "dns", "connect", "request", "answer", "deny", "end", "policy", "ask", "decoy"; and "refused",
	// if that is asked for; more may be added
	Kind  string `json:"kind"`
	Proto string `json:"proto,omitempty"` // "tcp", "udp", "icmp"; others may be denied
	Name  string `json:"name,omitempty"`  // the host name that it is about
	Addr  string `json:"addr,omitempty"`  // the address, where there is one
	Port  int    `json:"port,omitempty"`  // the port, where there is one
	// what was decided: "allow", "deny"; with "ask" also "ask": it begins to wait; with "decoy" also
	// "stop": all processes were killed
	Verdict string `json:"verdict,omitempty"`
	Rule    string `json:"rule,omitempty"`   // the rule that decided, if one did; with "policy", those that were added
	Reason  string `json:"reason,omitempty"` // why
	Hint    string `json:"hint,omitempty"`   // how to change it
	// the rule that would allow what was denied for its address, in the short form
	Fix string `json:"fix,omitempty"`
	// with "decoy": its path inside; what else is told is where a token was to go
	Decoy   string `json:"decoy,omitempty"`
	Method  string `json:"method,omitempty"`  // of an HTTP request that was looked at
	Path    string `json:"path,omitempty"`    // of the same, as it was sent, without the query
	Status  int    `json:"status,omitempty"`  // of the answer to it: the server's, or the gate's with "deny"
	In      int64  `json:"in,omitempty"`      // with "end" and "answer": bytes that went into the sandbox
	Out     int64  `json:"out,omitempty"`     // with "end" and "answer": bytes that went out of it
	Count   int    `json:"count,omitempty"`   // how often it happened, where that is more than once
	Policy  string `json:"policy,omitempty"`  // digest of the policy that was in force
	Syscall string `json:"syscall,omitempty"` // with "refused": the system call, where it is known
	Program string `json:"program,omitempty"` // with "refused": what called it
	PID     int    `json:"pid,omitempty"`     // with "refused": its process inside, or the first of them
	Exec    string `json:"exec,omitempty"`    // with "refused": the command that it belongs to
	// with a pending "ask": when it is denied if it is not answered
	Until time.Time `json:"until,omitzero"`
}

// Place is where ev leads, as a rule in its short form has it; "" for nowhere that is
// known.
func (ev NetEvent) Place() string {
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

// NetNow is the network of a live sandbox at this moment.
type NetNow struct {
	Conns      int   `json:"conns"`                 // connections that are open
	Flows      int   `json:"flows"`                 // flows of datagrams
	In         int64 `json:"in"`                    // bytes received by the sandbox since it was started
	Out        int64 `json:"out"`                   // bytes sent by the sandbox
	EventsLost int64 `json:"events_lost,omitempty"` // events lost for lack of space

	Asking []NetQuestion `json:"asking,omitempty"` // pending requests, the oldest first
}

// NetQuestion is a place in the network that waits for a person, as no rule names it.
// There is one of each place, however many wait for it.
type NetQuestion struct {
	// HOST, where a name is looked up and its port is not known yet; HOST:PORT; udp://HOST:PORT
	Place   string    `json:"place"`
	Proto   string    `json:"proto"`          // "dns", "tcp", "udp"
	Name    string    `json:"name,omitempty"` // the host name; none is an address that no name was resolved to
	Addr    string    `json:"addr,omitempty"` // that address
	Port    int       `json:"port,omitempty"` // not with "dns"
	Since   time.Time `json:"since"`          // when it began to wait
	Until   time.Time `json:"until"`          // when it is denied if it is not answered
	Waiting int       `json:"waiting"`        // queries and connections that are held for it
}

// NetAsking lists pending requests.
type NetAsking struct {
	Asking []NetQuestion `json:"asking"` // the longest first
}

// AnswerRequest approves or denies pending requests, and later ones, by adding rules.
type AnswerRequest struct {
	Rules []string `json:"rules"`            // in the short form, as in example.com:443
	ForMS int64    `json:"for_ms,omitempty"` // duration; 0 is permanent
}

// AnswerResult is the policy after an AnswerRequest.
type AnswerResult struct {
	AllowResult
	Settled []NetQuestion `json:"settled"` // the pending requests that were settled
}

// NetRequest asks what happened between a sandbox and the network.
type NetRequest struct {
	Last  int       `json:"last,omitempty"`  // the newest N; 0 is 100, -1 is all stored events
	Since time.Time `json:"since,omitzero"`  // only events since then
	Kinds []string  `json:"kinds,omitempty"` // of these kinds alone
}

// NetResult is what happened between a sandbox and the network, as far as it is
// kept, and what is now.
type NetResult struct {
	Events []NetEvent `json:"events"`           // the oldest first
	Now    *NetNow    `json:"now,omitempty"`    // of one that is live and has a gate
	Policy string     `json:"policy,omitempty"` // digest of the policy in force
}

// AllowRequest changes the network rules of a sandbox, immediately if it is running.
type AllowRequest struct {
	Allow []string `json:"allow,omitempty"`  // rules in the short form, as in example.com:443
	Deny  []string `json:"deny,omitempty"`   // likewise; deny rules take precedence
	ForMS int64    `json:"for_ms,omitempty"` // duration; 0 is permanent
	// allow rules to remove, from any level: in the short form or as in the policy; not together with rules to add
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
	// HOST[:PORT], with udp:// before it for UDP; the port is 443 where none is given
	Host   string `json:"host"`
	Method string `json:"method,omitempty"` // of an HTTP request, such as GET
	Path   string `json:"path,omitempty"`   // of an HTTP request
}

// WhyResult is the decision about a destination, and its reason. No connection is made.
type WhyResult struct {
	Place string `json:"place"` // the destination, in full
	// "allow", "deny", "inspect" or "ask"; "inspect" lets HTTP pass, as each request is decided on
	Verdict string     `json:"verdict"`
	Rule    string     `json:"rule,omitempty"`   // the rule that decides, if one does
	At      string     `json:"at,omitempty"`     // where the rule was defined
	Reason  string     `json:"reason"`           // why
	Hint    string     `json:"hint,omitempty"`   // the line of a policy that would change it
	Allow   bool       `json:"allow,omitempty"`  // an AllowRequest with this place would change it
	Fix     string     `json:"fix,omitempty"`    // an AllowRequest with this rule would change it; Place would not
	Until   *time.Time `json:"until,omitempty"`  // when another policy takes over; none is never
	Policy  string     `json:"policy,omitempty"` // digest of the policy that decides
	Denies  bool       `json:"denies,omitempty"` // the rule denies: removing it may change the decision
}
