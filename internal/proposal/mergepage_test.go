package proposal_test

import (
	"net/url"
	"strings"
	"testing"

	"github.com/coppice-dev/coppice/internal/proposal"
)

func TestMergePage(t *testing.T) {
	t.Parallel()
	const b = "coppice/fix"
	into := proposal.MergeRequest{Branch: b, Into: "main"}
	github := "https://github.com/o/r/compare/main...coppice/fix?expand=1"
	gitlab := "https://gitlab.com/g/r/-/merge_requests/new?merge_request%5Bsource_branch%5D=coppice%2Ffix&merge_request%5Btarget_branch%5D=main"
	azure := "https://dev.azure.com/org/pro/_git/r/pullrequestcreate?sourceRef=coppice%2Ffix&targetRef=main"
	for remote, want := range map[string]string{
		"https://github.com/o/r":                  github,
		"https://github.com/o/r.git":              github,
		"https://github.com/o/r.git/":             github,
		"https://me:secret@github.com/o/r.git":    github,
		"https://TOKEN@GitHub.com/o/r":            github,
		"git@github.com:o/r.git":                  github,
		"git@github.com:/o/r.git":                 github,
		"github.com:o/r":                          github,
		"ssh://git@github.com/o/r.git":            github,
		"ssh://git@ssh.github.com:443/o/r.git":    github,
		"git://github.com/o/r.git":                github,
		"git+ssh://git@github.com/o/r.git":        github,
		"https://github.example.com:8443/o/r":     "https://github.example.com:8443/o/r/compare/main...coppice/fix?expand=1",
		"ssh://git@github.example.com:2222/o/r":   "https://github.example.com/o/r/compare/main...coppice/fix?expand=1",
		"https://gitlab.com/g/r.git":              gitlab,
		"ssh://git@altssh.gitlab.com:443/g/r.git": gitlab,
		"git@gitlab.com:g/sub/sub2/r.git":         strings.Replace(gitlab, "/g/r/", "/g/sub/sub2/r/", 1),
		"http://gitlab.example.com:8080/g/r.git": strings.Replace(gitlab, "https://gitlab.com",
			"http://gitlab.example.com:8080", 1),
		"git@bitbucket.org:o/r.git":                "https://bitbucket.org/o/r/pull-requests/new?dest=main&source=coppice%2Ffix",
		"https://codeberg.org/o/r.git":             "https://codeberg.org/o/r/compare/main...coppice/fix",
		"ssh://git@gitea.example.com:3022/o/r.git": "https://gitea.example.com/o/r/compare/main...coppice/fix",
		"https://forgejo.example.com/o/r":          "https://forgejo.example.com/o/r/compare/main...coppice/fix",
		"https://org@dev.azure.com/org/pro/_git/r": azure,
		"git@ssh.dev.azure.com:v3/org/pro/r":       azure,
		"org@vs-ssh.visualstudio.com:v3/org/pro/r": azure,
		"https://org.visualstudio.com/pro/_git/r":  strings.Replace(azure, "dev.azure.com/org", "org.visualstudio.com", 1),
		"https://dev.azure.com/org/a%20b/_git/r":   strings.Replace(azure, "/pro/", "/a%20b/", 1),
		"https://git.sr.ht/~me/r":                  "https://git.sr.ht/~me/r/send-email",
		"git@git.sr.ht:~me/r":                      "https://git.sr.ht/~me/r/send-email",
		"https://git.example.com/o/r.git":          "", // not known
		"/srv/git/r.git":                           "",
		"../r.git":                                 "",
		"file:///srv/git/r.git":                    "",
		"ext::sh -c x":                             "",
		"https://github.com/o":                     "",
		"https://github.com/o/r/x":                 "",
		"https://github.com/o/..":                  "",
		"https://github.com/../r":                  "",
		"https://github.com/o/r?x=y":               github,
		"https://github.com/o/%0Ar":                "",
		"https://github.com/o/%1B[2J":              "",
		"https://github.com@evil.example/o/r":      "",
		"https://github.com\\@evil.example/o/r":    "",
		"git@-oProxyCommand=github.com:o/r":        "",
		"https://githu\u202eb.com/o/r":             "",
		"javascript://github.com/%0aalert(1)//o/r": "",
		"https://dev.azure.com/org/pro/r":          "",
		"https://github.com:99999999/o/r":          "",
		"":                                         "",
		":":                                        "",
		"github.com":                               "",
	} {
		if got := proposal.MergePage(remote, into); got != want {
			t.Errorf("%q:\n%s, not\n%s", remote, got, want)
		}
	}
	for name, tt := range map[string]struct {
		r    proposal.MergeRequest
		want string
	}{
		"no target": {proposal.MergeRequest{Branch: b}, "https://github.com/o/r/compare/coppice/fix?expand=1"},
		"a title": {proposal.MergeRequest{Branch: b, Title: "a & b = #1"},
			"https://github.com/o/r/compare/coppice/fix?expand=1&title=a+%26+b+%3D+%231"},
		"branches": {proposal.MergeRequest{Branch: "coppice/a#b?c", Into: "x y%"},
			"https://github.com/o/r/compare/x%20y%25...coppice/a%23b%3Fc?expand=1"},
	} {
		if got := proposal.MergePage("git@github.com:o/r", tt.r); got != tt.want {
			t.Errorf("%s: got %s, want %s", name, got, tt.want)
		}
	}
}

func TestPublicRemote_HasNoSecret(t *testing.T) {
	t.Parallel()
	for remote, want := range map[string][2]string{
		"https://me:hunter2@github.com/o/r":  {"https://github.com/o/r", "me:hunter2"},
		"https://hunter2@github.com/o/r":     {"https://github.com/o/r", "hunter2"},
		"https://a@b:hunter2@github.com/o/r": {"https://github.com/o/r", "a@b:hunter2"},
		"https://github.com/o/r?t=hunter2":   {"https://github.com/o/r", ""},
		"https://github.com/o/r#hunter2":     {"https://github.com/o/r", ""},
		"https://me:hunter2@github.com":      {"https://github.com", "me:hunter2"},
		"git@github.com:o/r":                 {"git@github.com:o/r", ""},
		"/srv/r@x":                           {"/srv/r@x", ""},
	} {
		if got := [2]string{proposal.PublicRemote(remote), proposal.RemoteSecret(remote)}; got != want {
			t.Errorf("%s: got %q, want %q", remote, got, want)
		}
	}
}

func FuzzMergePage(f *testing.F) {
	for _, s := range []string{"https://me:hunter2@github.com/o/r", "git@gitlab.com:a/b/c",
		"git@ssh.dev.azure.com:v3/o/p/r", "https://x@y@codeberg.org:1/a/b", "://@", "git.sr.ht:~a/b"} {
		f.Add(s, "coppice/fix", "main", "t")
	}
	f.Fuzz(func(t *testing.T, remote, branch, into, title string) {
		proposal.PublicRemote(remote)
		proposal.RemoteSecret(remote)
		page := proposal.MergePage(remote, proposal.MergeRequest{Branch: branch, Into: into, Title: title})
		if page == "" {
			return
		}
		u, err := url.Parse(page)
		if err != nil || u.User != nil || u.Host == "" || u.Fragment != "" || u.Scheme != "https" && u.Scheme != "http" {
			t.Fatalf("%q: %q, %v", remote, page, err)
		}
		for _, r := range page {
			if r <= ' ' || r >= 0x7f {
				t.Fatalf("%q: %q", remote, page)
			}
		}
	})
}
