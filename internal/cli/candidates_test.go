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

func TestParseCandidates_RefusesWithThePlace(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]struct{ msg, hint string }{
		"":            {"f is empty", "looks like"},
		"# nothing\n": {"f is empty", ""},
		"- a\n":       {"f:1:1: a list, where keys", ""},
		"tests: x\n": {`f:1:1: there is no key "tests"`,
			"did you mean test? the keys here are base, candidates, jobs, score, test, timeout"},
		"test: a\nzzz: b\n":                 {`f:2:1: there is no key "zzz"`, "the keys here are"},
		"test: a\ntest: b\n":                {"f:2:1: test is given twice", ""},
		"test: true\n":                      {"f:1:7: a truth value, where a command is wanted", `in quotes: "true"`},
		"test: 1\n":                         {"f:1:7: a number, where a command", `in quotes: "1"`},
		"test:\n":                           {"f:1:6: nothing, where a command", ""},
		"test: ' '\n":                       {"f:1:7: an empty command", ""},
		"test: [a]\n":                       {"f:1:7: a list, where a command", ""},
		"jobs: many\n":                      {"f:1:7: a text, where a number", ""},
		"jobs: 0\n":                         {`f:1:7: "0" is no number of 1 or more`, ""},
		"jobs: 1.5\n":                       {"f:1:7: a number, where a number", ""},
		"timeout: 5\n":                      {"f:1:10: a number, where a time", ""},
		"timeout: 5 minutes\n":              {`f:1:10: "5 minutes" is no time`, ""},
		"timeout: -5m\n":                    {`f:1:10: "-5m" is no time`, ""},
		"candidates: a\n":                   {"f:1:13: a text, where a list", ""},
		"candidates: [a]\n":                 {"f:1:14: a text, where keys", ""},
		"candidates: [{name: a}]":           {"f:1:14: a candidate without a cmd", ""},
		"candidates:\n- cmd: a\n  nam: b\n": {`f:3:3: there is no key "nam"`, "did you mean name?"},
		"candidates: [{name: a, cmd: b}, {name: a, cmd: c}]": {`f:1:33: two candidates are called "a"`, ""},
		"test: &x a\nscore: *x\n":                            {"f:2:8: an alias, where a command", ""},
		"<<: {test: a}\n":                                    {`f:1:1: there is no key "<<"`, ""},
		"? [a]\n: b\n":                                       {`f:1:3: there is no key ""`, ""},
		"test: a\n---\ntest: b\n":                            {"f:2:1: a second document", ""},
		"test: \"a\n":                                        {"f: line", "looks like"},
		"test: !!binary aGk=\n":                              {"f:1:7: a value of type !!binary, where a command", ""},
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
