package cli

import (
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/fault"
)

func TestParseCandidates(t *testing.T) {
	t.Parallel()
	got, err := parseCandidates("f", []byte(`# a comment
base: 123456789012
test: |
  make test
  echo done
score: "echo 1"
jobs: 4
timeout: 1m30s
candidates:
  - {name: 7, cmd: "true"}
  - name: "é \e[31m"
    cmd: echo "a b" # c
  - cmd: 'exit 1'
`))
	want := candidatesFile{Base: "123456789012", Test: "make test\necho done\n", Score: "echo 1", Jobs: 4,
		Timeout:    90 * time.Second,
		Candidates: []wire.Candidate{{Name: "7", Cmd: "true"}, {Name: "é \x1b[31m", Cmd: `echo "a b"`}, {Cmd: "exit 1"}}}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, %v", got, err)
	}
}

func TestParseCandidates_ErrorNamesPosition(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]struct{ msg, hint string }{
		"":            {"f is empty", "example: {test"},
		"# nothing\n": {"f is empty", ""},
		"- a\n":       {"f:1:1: got a list, expected a mapping", ""},
		"tests: x\n": {`f:1:1: unknown key "tests"`,
			"did you mean test? valid keys: base, candidates, jobs, score, test, timeout"},
		"test: a\nzzz: b\n":                 {`f:2:1: unknown key "zzz"`, "valid keys"},
		"test: a\ntest: b\n":                {"f:2:1: duplicate key test", ""},
		"test: true\n":                      {"f:1:7: got a boolean, expected a command", `quote it: "true"`},
		"test: 1\n":                         {"f:1:7: got a number, expected a command", `quote it: "1"`},
		"test:\n":                           {"f:1:6: got nothing, expected a command", ""},
		"test: ' '\n":                       {"f:1:7: command is empty", ""},
		"test: [a]\n":                       {"f:1:7: got a list, expected a command", ""},
		"jobs: many\n":                      {"f:1:7: got a text, expected a number", ""},
		"jobs: 0\n":                         {`f:1:7: invalid number "0": must be at least 1`, ""},
		"jobs: 1.5\n":                       {"f:1:7: got a number, expected a number", ""},
		"timeout: 5\n":                      {"f:1:10: got a number, expected a duration", ""},
		"timeout: 5 minutes\n":              {`f:1:10: invalid duration "5 minutes"`, ""},
		"timeout: -5m\n":                    {`f:1:10: invalid duration "-5m"`, ""},
		"candidates: a\n":                   {"f:1:13: got a text, expected a list", ""},
		"candidates: [a]\n":                 {"f:1:14: got a text, expected a mapping", ""},
		"candidates: [{name: a}]":           {"f:1:14: candidate has no cmd", ""},
		"candidates:\n- cmd: a\n  nam: b\n": {`f:3:3: unknown key "nam"`, "did you mean name?"},
		"candidates: [{name: a, cmd: b}, {name: a, cmd: c}]": {`f:1:33: duplicate candidate name "a"`, ""},
		"test: &x a\nscore: *x\n":                            {"f:2:8: got an alias, expected a command", ""},
		"<<: {test: a}\n":                                    {`f:1:1: unknown key "<<"`, ""},
		"? [a]\n: b\n":                                       {`f:1:3: unknown key ""`, ""},
		"test: a\n---\ntest: b\n":                            {"f:2:1: more than one YAML document", ""},
		"test: \"a\n":                                        {"f: line", "example: {test"},
		"test: !!binary aGk=\n":                              {"f:1:7: got a value of type !!binary, expected a command", ""},
		"test: " + strings.Repeat("x", maxCandidatesFile):    {"f is larger than 1048576 bytes", ""},
		strings.Repeat("[", 20000):                           {"f: ", ""},
	} {
		_, err := parseCandidates("f", []byte(text))
		if !fault.Is(err, fault.Invalid) || !strings.HasPrefix(err.Error(), want.msg) ||
			!strings.Contains(fault.HintOf(err), want.hint) {
			t.Errorf("%.60q: %v, hint %q", text, err, fault.HintOf(err))
		}
	}
}

func FuzzParseCandidates(f *testing.F) {
	f.Add([]byte("test: a\ncandidates: [{name: a, cmd: b}]\n"))
	f.Add([]byte("a: &a [*a]\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		if _, err := parseCandidates("f", text); err != nil && !fault.Is(err, fault.Invalid) {
			t.Errorf("%v", err)
		}
	})
}
