//go:build linux

package message

import (
	"fmt"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/layer"
)

func started(pid, parent int, args ...string) wire.Program {
	return wire.Program{PID: pid, Parent: parent, Args: args}
}

func TestAuto(t *testing.T) {
	t.Parallel()
	var many []wire.Program
	for i := range 40 {
		many = append(many, started(100+i, 0, "touch", fmt.Sprintf("file-%02d", i)))
	}
	flood := []wire.Program{started(5, 0, "touch", "a")}
	flood[0].Unlisted = 9744
	build := []wire.Program{started(5, 0, "make", "-j2"), started(6, 5, "cc", "-c", "a.c"),
		started(7, 5, "cc", "-c", "b.c")}
	build[2].Unlisted = 300
	for _, c := range []struct {
		name     string
		mark     string
		programs []wire.Program
		paths    []string
		want     string
	}{
		{"nothing", "", nil, nil, ""},
		{"a mark wins", "Edit main.go", build, []string{"/a"}, "Edit main.go"},
		{"a mark is escaped", "a\x1b[2Jb\nc", nil, nil, `a\x1b[2Jb\nc`},
		{"programs before paths", "", []wire.Program{started(5, 0, "touch", "a")}, []string{"/a"}, "touch a"},
		{"children are omitted", "", build, nil, "make -j2"},
		{"unlisted programs are counted", "", flood, nil, "touch a; and 9744 more"},
		{"several", "", []wire.Program{started(5, 0, "touch", "a"), started(6, 0, "rm", "b")}, nil, "touch a; rm b"},
		{"each once", "", []wire.Program{started(5, 0, "make"), started(6, 0, "make"), started(7, 0, "make")}, nil, "make"},
		{"too many", "", many, nil,
			"touch file-00; touch file-01; touch file-02; touch file-03; touch file-04; touch file-05; and 34 more"},
		{"words are quoted", "", []wire.Program{started(5, 0, "touch", "a b", "it's", "")}, nil, `touch 'a b' 'it'\''s' ''`},
		{"omitted arguments are marked", "", []wire.Program{started(5, 0, "touch", "a", "...")}, nil, "touch a ..."},
		{"control bytes are escaped", "", []wire.Program{started(5, 0, "touch", "\x1b[31m\u202e\xff\n")}, nil,
			`touch '\x1b[31m\u202e\ufffd\n'`},
		{"directories of PATH are omitted", "", []wire.Program{started(5, 0, "/usr/bin/make", "/usr/share/x")}, nil,
			"make /usr/share/x"},
		{"interpreters of scripts in PATH are omitted", "",
			[]wire.Program{started(5, 0, "/usr/bin/env", "node", "/usr/local/bin/npm", "ci")}, nil, "npm ci"},
		{"other directories are kept", "", []wire.Program{started(5, 0, "./configure")}, nil, "./configure"},
		{"sh -c", "", []wire.Program{started(5, 0, "sh", "-c", "echo hi > a && rm b")}, nil, "echo hi > a && rm b"},
		{"bash -lc", "", []wire.Program{started(5, 0, "/bin/bash", "-lc", "npm test")}, nil, "npm test"},
		{"bash -c -l", "", []wire.Program{started(5, 0, "bash", "-c", "-l", "npm test", "arg")}, nil, "npm test"},
		{"bash -eo pipefail -c", "", []wire.Program{started(5, 0, "bash", "--norc", "-e", "-o", "pipefail", "-c", "make x")},
			nil, "make x"},
		{"a truncated script", "", []wire.Program{started(5, 0, "sh", "-c", strings.Repeat("x", 200)+"...")}, nil,
			strings.Repeat("x", 97) + "..."},
		{"a script of several lines", "", []wire.Program{started(5, 0, "sh", "-c", "\n# why\n\tmake a\n make b\n")}, nil,
			"make a ..."},
		{"an empty script", "", []wire.Program{started(5, 0, "sh", "-c", " \n")}, []string{"/a"}, "/a"},
		{"a script file", "", []wire.Program{started(5, 0, "bash", "build.sh")}, nil, "bash build.sh"},
		{"an agent's eval", "", []wire.Program{started(5, 0, "/bin/bash", "-c", "-l",
			`source /root/.claude/s.sh && eval 'sed -i s/a/b/ '"'"'x y'"'"'' \< /dev/null && pwd -P >| /tmp/c-cwd`)}, nil,
			"sed -i s/a/b/ 'x y'"},
		{"an unterminated eval", "", []wire.Program{started(5, 0, "sh", "-c", "cd a && eval 'x")}, nil,
			"cd a && eval 'x"},
		{"an eval of a variable", "", []wire.Program{started(5, 0, "sh", "-c", "cd a && eval $x")}, nil, "cd a && eval $x"},
		{"wrappers", "", []wire.Program{started(5, 0, "env", "-u", "X", "A=b", "nice", "-n", "5", "timeout", "-k", "1", "30",
			"make", "-j2")}, nil, "make -j2"},
		{"wrappers of a script", "", []wire.Program{started(5, 0, "timeout", "30", "sh", "-c", "a; b")}, nil, "a; b"},
		{"a wrapper without a command", "", []wire.Program{started(5, 0, "timeout", "30")}, nil, "timeout 30"},
		{"an interactive shell", "", []wire.Program{started(5, 0, "-bash"), started(6, 5, "touch", "a"),
			started(7, 6, "cc1")}, nil, "touch a"},
		{"an interactive shell replaced by exec", "",
			[]wire.Program{started(5, 0, "bash", "-i"), started(5, 5, "make"), started(6, 5, "cc")}, nil, "make"},
		{"only a shell", "", []wire.Program{started(5, 0, "bash")}, []string{"/a"}, "/a"},
		{"read-only", "", []wire.Program{started(5, 0, "git", "status", "-s"), started(6, 0, "touch", "a"),
			started(7, 0, "sh", "-c", "ls -l")}, nil, "touch a"},
		{"reading and writing", "", []wire.Program{started(5, 0, "sh", "-c", "cat a > b")}, nil, "cat a > b"},
		{"only read-only", "", []wire.Program{started(5, 0, "ls")}, []string{"/a"}, "/a"},
		{"without arguments", "", []wire.Program{started(5, 0)}, []string{"/a"}, "/a"},
	} {
		if got := Auto(c.mark, c.programs, c.paths); got != c.want {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
}

func TestAuto_OfPaths(t *testing.T) {
	t.Parallel()
	var wide, deep []string
	for i := range 30 {
		wide = append(wide, fmt.Sprintf("/root/app/file-%02d", i))
	}
	for i := range layer.MaxPaths {
		deep = append(deep, fmt.Sprintf("/root/app/node_modules/m/%d", i))
	}
	for _, c := range []struct {
		name  string
		paths []string
		want  string
	}{
		{"the root", []string{"/"}, "/"},
		{"one", []string{"/root/app/go.mod"}, "/root/app/go.mod"},
		{"two in a directory", []string{"/root/app/go.mod", "/root/app/go.sum"}, "go.mod, go.sum in /root/app"},
		{"most first", []string{"/root/app/go.mod", "/root/app/src/a", "/root/app/src/b/c"},
			"src/ (2 paths), go.mod in /root/app"},
		{"the deepest directory", []string{"/root/a", "/root/src/x/y/a", "/root/src/x/y/b"},
			"src/x/y/ (2 paths), a in /root"},
		{"a new directory", []string{"/root/src", "/root/src/a", "/root/src/b", "/root/c"}, "src/ (3 paths), c in /root"},
		{"far apart", []string{"/etc/passwd", "/var/a", "/var/b"}, "/var/ (2 paths), /etc/passwd"},
		{"names with a common prefix", []string{"/root/ab", "/root/abc/d"}, "ab, abc/d in /root"},
		{"many", wide, "file-00, file-01, file-02, file-03, file-04, file-05, file-06, file-07, file-08, file-09, " +
			"file-10, and 19 more in /root/app"},
		{"truncated list of paths", append([]string{"/root/go.mod"}, deep[1:]...),
			fmt.Sprintf("app/node_modules/m/ (%d+ paths), go.mod in /root", layer.MaxPaths-1)},
		{"hostile names", []string{"/root/a b\n", "/root/\x1b[2J\xff"}, `'\x1b[2J\ufffd', 'a b\n' in /root`},
	} {
		if got := Auto("", nil, c.paths); got != c.want {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
}

func FuzzAuto(f *testing.F) {
	f.Add("sh", "-c", "a && eval 'b", "/a/b", "/a")
	f.Add("env", "-u", "", "/", "/x")
	f.Add("bash", "-", "\\", "/a/b", "/a/b/c")
	f.Fuzz(func(t *testing.T, a, b, c, p, q string) {
		if !strings.HasPrefix(p, "/") || !strings.HasPrefix(q, "/") {
			return
		}
		for _, text := range []string{Auto("", []wire.Program{started(1, 0, a, b, c)}, nil), Auto("", nil, []string{p, q})} {
			if Clean(text) != text || !utf8.ValidString(text) {
				t.Errorf("%q", text)
			}
		}
	})
}
