//go:build linux && (amd64 || arm64)

package escape

import (
	"slices"
	"strings"
)

// Reasons for which nothing is recorded.
const (
	Files    = "what is not there, or may not be changed, is refused by mounts and modes, which record nothing"
	Kernel   = "the kernel refuses it, and records nothing"
	Nothing  = "nothing is refused: there is nothing to find"
	Ordinary = "it is answered as a call that there is not, of which ordinary programs try some and do without"
)

// Record is a record that must be in the audit log after an attack.
type Record struct {
	Kind    string // kind in the audit log: denial or network
	Exec    string // exec id of the attack, for a system call
	Syscall string // "" with Exec: the filter killed the attacker
	Path    string // path of a honeytoken
	Place   string // network destination: ADDRESS:PORT, or a name
	Reason  string // reason of the gate, for records without a Place
	Verdict string // with Place; "" is deny, or ask
}

// Records returns the expected records of the attack a in a sandbox with these facts. The attack's command had the exec
// id exec, printed out, and was killed by signal unless that is "".
func (a Attack) Records(f Facts, exec, out, signal string) (all []Record) {
	for _, call := range a.Refused {
		all = append(all, Record{Kind: "denial", Exec: exec, Syscall: call})
	}
	if a.Killed && signal == "SYS" {
		all = append(all, Record{Kind: "denial", Exec: exec})
	}
	for _, p := range Touched(out) {
		all = append(all, Record{Kind: "denial", Path: p})
	}
	if f.Gate != nil && a.Because != "" {
		all = append(all, Record{Kind: "network", Reason: a.Because, Verdict: "deny"})
	}
	if f.Gate != nil && a.Told != "" {
		r := Record{Kind: "network", Place: f.Fill(a.Told), Verdict: "deny"}
		if f.Gate.Asks {
			r.Verdict = ""
		}
		all = append(all, r)
	}
	return all
}

// Recorded returns a description of the expected records.
func (a Attack) Recorded() string {
	var all []string
	if len(a.Refused) > 0 {
		calls := slices.Clone(a.Refused)
		for i := range calls {
			calls[i] = "`" + calls[i] + "`"
		}
		all = append(all, "denial of "+strings.Join(calls, ", "))
	}
	if a.Killed {
		all = append(all, "denial: the command was ended by SIGSYS")
	}
	if a.Touches {
		all = append(all, "denial of each decoy that was opened")
	}
	if a.Told != "" {
		all = append(all,
			"network: "+
				strings.NewReplacer("{host}", "HOST", "{tcp}", "PORT", "{udp}", "PORT", "{allowed}", "PORT", "{name}", "NAME",
					"{secret}", "SECRET", "{hex}", "HEX").Replace(a.Told))
	}
	if a.Because != "" {
		all = append(all, "network: "+a.Because)
	}
	if a.Starts != nil {
		all = append(all, "program: each that it starts")
	}
	if a.None != "" {
		all = append(all, "none: "+a.None)
	}
	return strings.Join(all, "; ")
}
