package wire

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"testing"
	"time"
)

var update = flag.Bool("update", false, "write the golden files anew")

// TestJSON_IsBackwardCompatible pins the names and forms of every field. Lines may be added to
// the golden file but never changed: programs outside this repository read them.
func TestJSON_IsBackwardCompatible(t *testing.T) {
	t.Parallel()
	when := time.Date(2026, 1, 2, 3, 4, 5, 678900000, time.UTC)
	one := 1
	exit := 3
	sb := Sandbox{ID: "0123456789ab", Name: "box", Created: when, Head: "aaaaaaaaaaaa", State: StateLive, Procs: 2,
		From: "host", Driver: "overlay",
		Tier: "process", User: "me", Net: "off", Env: []string{"K=V"}, Limits: Limits{Memory: 1, Pids: 2, Disk: 3},
		Warnings: []string{"w"}}
	snap := Snapshot{ID: "aaaaaaaaaaaa", Parent: "bbbbbbbbbbbb", Message: "m", Head: true, Leaf: true, Cause: "exec",
		Created: when, Exit: &exit,
		Paths: 1, Bytes: 2, Finalized: true, Tags: []string{"t"}, Sandbox: "box"}
	change := Change{Kind: Modified, Path: "a\ufffd", Raw: []byte("a\xff"), Type: "file", Size: 4,
		Lines: &Lines{Added: 1, Removed: 2}, Binary: true}
	score := 1.5
	branch := TournamentBranch{Name: "n", Cmd: "c", Sandbox: "box-t0-1", Node: "a", Exit: 1, TestExit: 2, Score: &score,
		TimeMS: 3, Paths: 4, Bytes: 5, Tail: "t\n"}
	var b bytes.Buffer
	for _, v := range []any{
		CreateRequest{Name: "box", From: Source{Kind: SourceSandbox, Path: "/p", Sandbox: "s", Ref: "r"}, User: "me",
			Driver: "copy", Tier: "process",
			Net: "host", Env: []string{"K=V"}, Limits: "pids=1"},
		CreateRequest{KeepRecent: 1, KeepForMS: 2},
		CreateRequest{Labels: map[string]string{"b": "", "a": "v"}}, ForkRequest{Labels: map[string]string{"a": "v"}},
		LifeRequest{Labels: map[string]string{"a": "v"}, RemoveLabels: []string{"b"}},
		Sandbox{Labels: map[string]string{"a": "v"}},
		CreateRequest{}, sb, Sandbox{}, ListResult{Sandboxes: []Sandbox{}}, RemoveResult{Removed: []string{"box"}},
		StatusResult{Sandbox: sb, DriverReason: "d", TierReason: "t", Enforced: []Enforcement{{"seccomp", EnforcedOn, "x"}},
			Snapshots: 1, Branches: 2,
			Disk: Disk{1, 2, 3, 4}, Dirty: true, Notices: []string{"n"}, LeftOut: []LeftOut{{"/p", "w"}}},
		DaemonStatus{Version: "v1", PID: 1, Home: "/h", Started: when, Sandboxes: 2, Live: 1},
		DaemonStatus{Version: "v1", PID: 1, Home: "/h", Started: when,
			Listeners: []Listener{{URL: "http://127.0.0.1:1", Auth: AuthToken}}},
		Token{ID: "01234567", Name: "n", Scope: "read", Sandboxes: []string{"0123456789ab"}, Created: when, Expires: &when,
			LastUsed: &when},
		TokenRequest{Name: "n", Scope: "read", Sandboxes: []string{"box"}, TTLMS: 1},
		TokenResult{Token: Token{ID: "01234567", Name: "n", Scope: "read", Created: when}, Secret: "s"},
		TokensResult{Tokens: []Token{}},
		ProbeReport{Kernel: "k", User: "u",
			Items: []ProbeItem{{Name: "n", Group: "g", OK: true, Weak: true, Detail: "d", Remedy: "r"}}, Tier: "t", Driver: "d"},
		snap, Snapshot{ID: "aaaaaaaaaaaa"},
		LogResult{Nodes: []Snapshot{snap}, Head: "aaaaaaaaaaaa", Rows: []LogRow{{"*", "aaaaaaaaaaaa"}, {"|", ""}}},
		HeadResult{"aaaaaaaaaaaa"}, BranchesResult{Nodes: []Snapshot{}, Head: "aaaaaaaaaaaa"}, change,
		ShowResult{Snapshot: snap, Changes: []Change{change}},
		DiffRequest{A: "a", B: "b", Paths: []string{"p"}, Stat: true}, DiffResult{A: "a", B: "b", Changes: []Change{}},
		CommitRequest{Message: "m"}, CommitResult{Node: "a", Head: "a", Changed: true, Paths: 1, Bytes: 2},
		CheckoutRequest{Node: "a", InPlace: true}, MarkRequest{MarkBegin, "l"},
		MoveResult{Head: "a", From: "b", Kept: "c", Message: "m", Stopped: 1, InPlace: true, Rewritten: 2},
		UndoRequest{N: 2, InPlace: true}, RedoRequest{InPlace: true}, TagRequest{"t", "r"}, TagResult{"t", "a"},
		TagsResult{map[string]string{"t": "a"}}, GCRequest{DryRun: true},
		GCResult{Removed: []string{"a"}, Layers: 1, Bytes: 2, DryRun: true},
		GCRequest{Keep: Keep{Last: 1, WithinMS: 2, Hourly: 3, Daily: 4, Weekly: 5}, Sandboxes: []string{"box"}},
		GCResult{Removed: []string{"a"}, Dropped: []Snapshot{snap}},
		ProposeRequest{Title: "t", Tests: []string{"c"}, TimeoutMS: 1, Guard: true, Trust: []string{"p"},
			TrustRaw: [][]byte{{255}}, TrustAll: true, Work: "w"},
		Proposed{Sandbox: "s", Title: "t", Repo: Repo{Top: "/r", Dir: "/r", Branch: "b", Base: "c"}, Branch: "b", Ref: "r",
			Proposal: "p", Start: "c", Tip: "t", Work: "w", Snapshot: "a",
			Commits: 1, Files: 2, Added: 3, Deleted: 4, Marks: []GitMark{},
			Tests: []Trial{{Cmd: "c", Exit: 1, TimeMS: 2, TimedOut: true, Tail: "t"}}, Summary: "m"},
		TrialRequest{Cmd: "c", At: "a", TimeoutMS: 1}, RebaseRequest{Onto: "o", KeepConflicts: true},
		Rebased{Repo: Repo{Top: "/r", Dir: "/r", Branch: "b", Base: "c"}, Old: "o", Before: "a", Head: "b", Moved: true,
			Conflicts: []string{"p"}},
		TournamentRequest{Base: "r", Test: "t", Score: "s", Candidates: []Candidate{{"n", "c"}, {Cmd: "c"}}, Jobs: 1,
			TimeoutMS: 2, Keep: true},
		TournamentRequest{},
		TournamentResult{Base: "b", Branches: []TournamentBranch{branch, {}}, Winner: "n", WinnerNode: "a", Head: "a"},
		Event{Progress: &Progress{Phase: "p", Branch: &branch}}, Sandbox{Tournament: "box-t0"},
		GCResult{Removed: []string{}, Forks: []string{"box-t0-1"}},
		VerifyResult{Layers: 1, Bytes: 2, Unfinalized: 3,
			Damage: []Damage{{Sandbox: "s", Snapshot: "a", Layer: "l", Path: "p", Message: "m"}}},
		CommitRequest{Message: "m", Memory: true},
		CommitResult{Node: "a", Head: "a", Memory: &Memory{Image: "i", Size: 1, Added: 2, Facts: map[string]string{"f": "v"}},
			StillUS: 3},
		CheckoutRequest{Node: "a", FilesOnly: true}, MoveResult{Head: "a", Resumed: []string{"x"}},
		Capture{MemoryEveryMS: 1, MemoryOnMark: true}, ForkRequest{Memory: true},
		Sandbox{Paused: true, Quarantine: &Quarantine{Since: when, Step: "s", Reason: "r"}},
		GCResult{Removed: []string{}, Images: 1}, VerifyResult{Images: 1, Damage: []Damage{{Image: "i", Message: "m"}}},
		ForkRequest{Names: []string{"n"}, N: 2, At: "r"}, ForkResult{[]Sandbox{}}, StopResult{Stopped: 1, Head: "a"},
		StopResult{Head: "a", Uncounted: true},
		Event{Progress: &Progress{Phase: "p", Unit: "bytes", Done: 1, Total: 2, Note: "n"}}, Event{Result: HeadResult{"a"}},
		Event{Error: &Error{"k", "m", "h"}},
		SandboxEvent{Seq: 1, Time: when, Kind: EventSnapshot, Sandbox: "box", ID: "0123456789ab", Snapshot: "a", Parent: "b",
			Message: "m", Cause: "exec", Exit: &exit,
			Paths: 1, Bytes: 2, Exec: "e", Detail: "d", Dropped: 3},
		SandboxEvent{Seq: 1, Time: when, Kind: EventDropped},
		Problem{"about:blank", "t", 404, "d", "k", "h"},
		ExecRequest{Cmd: []string{"c"}, Env: []string{"K=V"}, Dir: "/d", TTY: true, Stdin: true, Size: &Size{80, 24},
			TimeoutMS: 1, Label: "l", Attach: "e", Offset: 5},
		CheckoutRequest{Node: "a", GraceMS: 1}, MoveResult{Head: "a", Restarted: true},
		ExecRequest{Keep: true, ReadOnly: true, Offset: -1, Run: &RunRequest{Cmd: []string{"c"}}},
		ExecRequest{Cmd: []string{"c"}, Capture: Capture{QuietMS: 1, MaxMS: 2}},
		RunRequest{Cmd: []string{"c"}},
		Run{RunRequest: RunRequest{Cmd: []string{"c"}, Env: []string{"K=V"}, Dir: "/d", TTY: true, Stdin: true,
			Size:    &Size{80, 24},
			Restart: RestartNo, Capture: Capture{Off: true, QuietMS: 1, MaxMS: 2}, Remove: true}, Exec: "e", Started: when,
			Starts: 1, Ended: &when, Exit: &Exit{Code: 1}},
		CreateRequest{Self: SelfRewind}, Sandbox{Self: SelfOff}, SocketResult{"/p"},
		Process{PID: 2, PPID: 1, Args: []string{"a\ufffd"}, Raw: [][]byte{[]byte("a\xff")}, Cut: true, Name: "n",
			Started: when, Start: 3, CPUMS: 4, RSS: 5, State: "S"},
		Process{Args: []string{}}, ProcessesResult{Processes: []Process{}, More: 1}, ProcessSignal{Name: "INT", Start: 3},
		ProcessSignal{},
		Port{Port: 3000, Address: "127.0.0.1", PID: 2, Program: "p"}, Port{}, PortsResult{Ports: []Port{}, More: 1},
		PreviewRequest{TTLMS: 1}, PreviewResult{"u", when},
		SandboxEvent{Kind: EventPort, Port: 3000, Detail: PortOpened, Message: "p"},
		FileInfo{Path: "a\ufffd", Raw: []byte("a\xff"), Type: FileLink, Size: 1, Mode: 0o4755, Mtime: when, UID: 1, GID: 2,
			Target: "t", ETag: `"e"`},
		FileList{Files: []FileInfo{}},
		FileEvent{Kind: FileMoved, Path: "b", Raw: []byte("b\xff"), From: "a", FromRaw: []byte("a\xff"), Dir: true},
		MkdirRequest{Path: "d", Raw: []byte("\xff"), Mode: 0o700, Parents: true},
		MoveRequest{"a", []byte("a\xff"), "b", []byte("b\xff")},
		UnpackResult{Files: 1, Bytes: 2, LeftOut: []string{"l"}},
		ExecInfo{ID: "x", Cmd: []string{"c"}, PID: 2, Started: when, TTY: true, Stdin: true, Kept: true, Attached: true,
			Supervised: true, Capture: Capture{Off: true}, Exit: &Exit{Code: 127}},
		ExecsResult{Execs: []ExecInfo{}}, Session{"i", "x", "s"}, AttachRequest{ReadOnly: true},
		AttachResult{"ws://h/", "t", when},
		TerminalControl{Resize: &Size{80, 24}, Signal: "INT", Dropped: &Dropped{3}, Exit: &Exit{Code: 1},
			Error: &Error{"k", "m", "h"}},
		Output{Text: "t"}, Output{Base64: []byte{255}},
		NetEvent{Time: when, Kind: NetDeny, Proto: "tcp", Name: "n", Addr: "192.0.2.1", Port: 443, Verdict: "deny", Rule: "r",
			Reason: "x", Hint: "h",
			In: 1, Out: 2, Count: 3, Policy: "sha256:0"}, NetEvent{Time: when, Kind: NetPolicy},
		NetNow{1, 2, 3, 4, 5, []NetQuestion{{Place: "n:443", Proto: "tcp", Name: "n", Addr: "192.0.2.1", Port: 443, Since: when,
			Until: when, Waiting: 2}}}, NetNow{},
		NetEvent{Time: when, Kind: NetAsk, Until: when}, NetQuestion{}, NetAsking{[]NetQuestion{}},
		AnswerRequest{[]string{"example.com"}, 1}, AnswerRequest{},
		AnswerResult{AllowResult{"sha256:0", &when, true, []string{"w"}}, []NetQuestion{}},
		SandboxEvent{Kind: EventAsk, Message: "n:443", Detail: AskWaits},
		NetRequest{Last: -1, Since: when, Kinds: []string{NetDNS}}, NetRequest{},
		NetResult{Events: []NetEvent{}, Now: &NetNow{}, Policy: "sha256:0"}, NetResult{},
		AllowRequest{Allow: []string{"example.com"}, Deny: []string{"example.org"}, ForMS: 1},
		AllowResult{"sha256:0", &when, true, []string{"w"}}, AllowResult{},
		WhyRequest{"example.com", "GET", "/p"},
		WhyResult{"example.com:443", "deny", "r", "a", "x", "h", true, &when, "sha256:0", false, ""}, WhyResult{},
		WhyResult{Fix: "a.example:443,private"},
		WhyResult{Denies: true},
		AllowRequest{RemoveAllow: []string{"example.com"}, RemoveDeny: []string{"example.org"}}, PolicyLine{"k", "v", "f"},
		PolicyLine{Key: "k"},
		Signal{"INT"}, Started{"e", 2, 3}, Dropped{3},
		LedgerRecord{Seq: 1, Leaf: 2, Time: when, Kind: "exec", Observer: "daemon", Sandbox: "0123456789ab", Name: "box",
			Policy: "sha256:0", Tier: "process", Prev: "0", Body: map[string]any{"exec": "x"}, Text: "x"},
		LedgerRequest{From: 1, Since: when, Kinds: []string{"exec"}, Last: 2, Limit: 3}, LedgerRequest{},
		LedgerResult{Records: []LedgerRecord{}, More: true},
		LedgerInspection{With: []LedgerRecord{}, Undone: true}, LedgerVerify{Keys: []string{"k"}, Checkpoint: "c"},
		LedgerVerified{1, "o", 2, "r", true}, LedgerCheckpoint{"c", "k", "g"}, LedgerCheckpoint{},
		LedgerGrowth{"c", []string{"k"}}, LedgerCosigned{"c", "s", "k", "o", 2, 1}, LedgerCosigned{}, LedgerWitnessed{"o", 2},
		LedgerKey{"k", 1, true}, LedgerKeys{[]LedgerKey{{Key: "k"}}, "w"},
		LedgerArchive{when}, LedgerArchived{3}, LedgerRisk{"refused", 1, 2}, LedgerSummary{},
		LedgerSummary{Sandbox: "0123456789ab", Name: "box", Removed: true, Records: 1, First: when, Last: when, Commands: 2,
			Ended: 3, Failed: 4, Code: &one, Outcome: "code 1", DurationNS: 5, Snapshots: 6, Rollbacks: 7, Changes: 8,
			PathNames: []string{"/p"}, Denied: 9, NetAllowed: 10, NetDenied: 11, Hosts: 12,
			HostNames: []string{"h"}, BytesIn: 13, BytesOut: 14, Limits: 15, Programs: 16, ProgramsFailed: 17, Lost: true,
			Risk: 18, Risks: []LedgerRisk{{"refused", 1, 2}}},
		Exit{Code: 1, Signal: "TERM", TimedOut: true, Message: "m", Snapshot: "a", Head: "a", Changed: true, Paths: 4},
		Exit{Code: 124, TimedOut: true, Limit: LimitTime, Hits: []string{LimitMemory, LimitPids}},
		Limits{MilliCPUs: 1500, TimeMS: 1, Output: 2, Files: 3}, SandboxEvent{Kind: EventLimit, Detail: LimitOutput},
		GrantSpec{Secret: "s", Preset: "p", Kind: "k", Hosts: []string{"h"}, Ports: []uint16{1}, Methods: []string{"GET"},
			Paths: []string{"/p"}, Sites: []GrantSite{{In: "header", Name: "n", Part: "p", Pointer: "/p",
				Methods: []string{"GET"}, Paths: []string{"/p"}, Services: []string{"s"}, Regions: []string{"r"}}},
			Except: []string{"/e"}, Mode: "replace", Env: []string{"E"}, For: "8h", Uses: 2, Rate: "1/s", Fork: "reissue",
			Insecure: true, Ask: "first", Query: map[string]string{"k": "v"}},
		GrantSpec{}, GrantsResult{Grants: []Grant{}},
		Grant{Name: "n", Secret: "s", Preset: "p", Kind: "k", Hosts: []string{"h"}, Sites: []string{"bearer"},
			Methods: []string{"GET"}, Paths: []string{"/p"}, Mode: "replace", Env: []string{"E"}, Placeholder: "x",
			Fork: "none", State: GrantLive, Why: "w", Given: when, Until: &when, Uses: 2, Used: 1, LastUsed: &when},
		CreateRequest{Grants: map[string]GrantSpec{"n": {}}, GrantsLater: true}, ForkRequest{Grants: "none"},
		NetEvent{Time: when, Kind: NetHTTP, Grants: []string{"n"}},
		NetEvent{Time: when, Kind: NetAsk, Grants: []string{"n"}, Question: "grant:x"},
		NetQuestion{Place: "grant:x", Proto: "tcp", Since: when, Until: when, Grant: "n", Method: "GET", Path: "/p"},
		Grant{Hosts: []string{}, Sites: []string{}, Given: when, Ask: "each", Refused: &when, RefusedWhy: "w"},
		StatusResult{Grants: []Grant{{Name: "n"}}},
		Consent{Digest: "d", Root: "/r", Grant: "g", Secret: "s", Hosts: []string{"h"}, Given: when, By: "b"},
		ConsentsResult{Consents: []Consent{}}, ConsentRequest{Policy: []PolicyFile{{Level: "project"}}, Digests: []string{"d"}},
	} {
		j, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		b.WriteString(reflect.TypeOf(v).Name() + " " + string(j) + "\n")
		back := reflect.New(reflect.TypeOf(v))
		if err := json.Unmarshal(j, back.Interface()); err != nil {
			t.Errorf("%T does not read what it wrote: %v", v, err)
		} else if _, event := v.(Event); !event && !reflect.DeepEqual(back.Elem().Interface(), v) {
			t.Errorf("%T reads %+v, but wrote %+v", v, back.Elem(), v)
		}
	}
	golden := filepath.Join("testdata", "wire.golden")
	if *update {
		if err := os.WriteFile(golden, b.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(b.Bytes(), want) {
		t.Errorf("the wire has changed; if it has only grown, run: go test ./client/wire -update\ngot:\n%s\nwant:\n%s",
			b.Bytes(), want)
	}
}

func TestNewChange_PreservesBytes(t *testing.T) {
	t.Parallel()
	for _, p := range []string{"/usr/bin/x", "//a", "a\xff", "é", "new\nline"} {
		c := NewChange(Added, p)
		j, err := json.Marshal(c)
		if err != nil {
			t.Fatal(err)
		}
		var back Change
		if err := json.Unmarshal(j, &back); err != nil {
			t.Fatal(err)
		}
		if want := string(bytes.TrimLeft([]byte(p), "/")); back.Name() != want {
			t.Errorf("%q is read as %q", p, back.Name())
		}
	}
}

func TestFrames_RoundTripWithinLimit(t *testing.T) {
	t.Parallel()
	var b bytes.Buffer
	big := bytes.Repeat([]byte{7}, MaxFrame)
	for _, p := range [][]byte{nil, []byte("x"), big} {
		if err := WriteFrame(&b, FrameStdout, p); err != nil {
			t.Fatal(err)
		}
	}
	buf := make([]byte, 8)
	for _, want := range [][]byte{nil, []byte("x"), big} {
		ft, p, err := ReadFrame(&b, buf)
		if err != nil || ft != FrameStdout || !bytes.Equal(p, want) {
			t.Fatalf("%v %d %v", ft, len(p), err)
		}
	}
	if _, _, err := ReadFrame(&b, buf); err != io.EOF {
		t.Errorf("at the end: %v", err)
	}
	if err := WriteFrame(&b, FrameStdout, append(big, 1)); err == nil {
		t.Error("a frame over the limit was written")
	}
	if _, _, err := ReadFrame(bytes.NewReader([]byte{3, 0xff, 0, 0, 0}), nil); err == nil {
		t.Error("a frame over the limit was read")
	}
	if _, _, err := ReadFrame(bytes.NewReader([]byte{3, 0, 0, 0, 2, 'x'}), nil); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("a truncated frame: %v", err)
	}
}

func FuzzReadFrame(f *testing.F) {
	f.Add([]byte{3, 0, 0, 0, 1, 'x'})
	f.Add([]byte{0xff, 0xff, 0xff, 0xff, 0xff})
	f.Fuzz(func(t *testing.T, b []byte) {
		r := bytes.NewReader(b)
		for {
			if _, p, err := ReadFrame(r, nil); err != nil {
				return
			} else if len(p) > MaxFrame {
				t.Fatalf("%d bytes", len(p))
			}
		}
	})
}
