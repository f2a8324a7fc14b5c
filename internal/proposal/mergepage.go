package proposal

import (
	"net/url"
	"regexp"
	"strings"
	"sync"
)

// MergeRequest asks a forge to merge a branch.
type MergeRequest struct {
	Branch string // the short name of the pushed branch
	Into   string // the branch to merge it into, or "" for the forge's default
	Title  string // or ""
}

// place is a repository on a forge.
type place struct {
	scheme string   // of its pages: https, or http if the remote uses http
	host   string   // lower case, with the port of its pages if they have one
	path   []string // the parts of its path, without .git
}

// MergePage returns the URL of the page to create a merge request, derived from the URL of the remote. It is ""
// if the forge is unknown, or the URL is not that of a forge: a path, or something that cannot be part of a URL.
// It contains no user name or password of the remote's URL.
func MergePage(remote string, r MergeRequest) string {
	p, ok := parse(remote)
	if !ok {
		return ""
	}
	host, _, _ := strings.Cut(p.host, ":")
	is := func(words ...string) bool {
		for _, w := range words {
			if strings.Contains(host, w) {
				return true
			}
		}
		return false
	}
	switch {
	case host == "dev.azure.com" || strings.HasSuffix(host, ".visualstudio.com"):
		return p.azure(r)
	case host == "git.sr.ht":
		return p.at("send-email", nil)
	case host == "bitbucket.org" && len(p.path) == 2:
		return p.at("pull-requests/new", url.Values{"source": {r.Branch}, "dest": some(r.Into), "title": some(r.Title)})
	case is("gitlab") && len(p.path) >= 2:
		return p.at("-/merge_requests/new",
			url.Values{"merge_request[source_branch]": {r.Branch}, "merge_request[target_branch]": some(r.Into),
				"merge_request[title]": some(r.Title)})
	case is("github") && len(p.path) == 2:
		return p.at("compare/"+span(r), url.Values{"expand": {"1"}, "title": some(r.Title)})
	case is("codeberg.org", "gitea", "forgejo") && len(p.path) == 2:
		return p.at("compare/"+span(r), url.Values{"title": some(r.Title)})
	}
	return ""
}

// some returns a list of s, or nil if s is empty.
func some(s string) []string {
	if s == "" {
		return nil
	}
	return []string{s}
}

// span returns the compared branches, as part of a path.
func span(r MergeRequest) string {
	if r.Into == "" {
		return escape(r.Branch)
	}
	return escape(r.Into) + "..." + escape(r.Branch)
}

// escape escapes a branch for a path, and keeps its slashes.
func escape(branch string) string { return strings.ReplaceAll(url.PathEscape(branch), "%2F", "/") }

// at returns the URL of a page below the repository.
func (p place) at(page string, q url.Values) string {
	var b strings.Builder
	b.WriteString(p.scheme + "://" + p.host)
	for _, part := range p.path {
		b.WriteString("/" + url.PathEscape(part))
	}
	b.WriteString("/" + page)
	if s := q.Encode(); s != "" {
		b.WriteString("?" + s)
	}
	return b.String()
}

// azure handles the forms of Azure Repos: ORG/PROJECT/_git/REPO, PROJECT/_git/REPO at the organization's own
// host, and v3/ORG/PROJECT/REPO over ssh.
func (p place) azure(r MergeRequest) string {
	q := url.Values{"sourceRef": {r.Branch}, "targetRef": some(r.Into)}
	if n := len(p.path); n == 4 && p.path[0] == "v3" {
		p.host, p.path = "dev.azure.com", []string{p.path[1], p.path[2], "_git", p.path[3]}
	} else if n < 2 || p.path[n-2] != "_git" {
		return ""
	}
	return p.at("pullrequestcreate", q)
}

// The accepted parts of a URL. Anything else does not belong to a forge, or is deceptive.
var (
	hostForm = sync.OnceValue(func() *regexp.Regexp {
		return regexp.MustCompile(`^[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)+$`)
	})
	partForm = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[\pL\pN_~][\pL\pN_.~ -]*$`) })
	portForm = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[0-9]{1,5}$`) })
)

// otherNames maps hosts at which forges serve ssh on port 443, and aliases, to the hosts of their pages.
var otherNames = map[string]string{
	"ssh.github.com": "github.com", "altssh.gitlab.com": "gitlab.com", "altssh.bitbucket.org": "bitbucket.org",
	"ssh.dev.azure.com": "dev.azure.com", "vs-ssh.visualstudio.com": "dev.azure.com", "www.github.com": "github.com",
	"www.gitlab.com": "gitlab.com",
}

// parse parses the URL of a remote: ssh://, https://, http://, git://, and USER@HOST:PATH.
func parse(remote string) (p place, ok bool) {
	p.scheme = "https"
	var path, port string
	if scheme, _, is := strings.Cut(remote, "://"); is {
		u, err := url.Parse(remote)
		if err != nil || u.Opaque != "" {
			return p, false
		}
		p.host, path = u.Hostname(), u.Path
		switch scheme = strings.ToLower(scheme); scheme {
		case "http", "https":
			p.scheme, port = scheme, u.Port()
		case "ssh", "git", "git+ssh", "ssh+git":
		default:
			return p, false
		}
	} else {
		host, rest, is := strings.Cut(remote, ":")
		if !is || strings.Contains(host, "/") {
			return p, false
		}
		p.host, path = host[strings.LastIndex(host, "@")+1:], rest
	}
	p.host = strings.ToLower(p.host)
	if name := otherNames[p.host]; name != "" {
		p.host = name
	}
	if !hostForm().MatchString(p.host) || port != "" && !portForm().MatchString(port) {
		return p, false
	}
	if port != "" {
		p.host += ":" + port
	}
	for part := range strings.SplitSeq(strings.TrimSuffix(strings.Trim(path, "/"), ".git"), "/") {
		if !partForm().MatchString(part) {
			return p, false
		}
		p.path = append(p.path, part)
	}
	return p, true
}

// PublicRemote returns the URL of a remote in a form that can be shown: without user name, password and query.
func PublicRemote(remote string) string {
	head, rest, is := strings.Cut(remote, "://")
	if !is {
		return remote // a path, or USER@HOST:PATH, which has no password
	}
	rest, _, _ = strings.Cut(rest, "?")
	rest, _, _ = strings.Cut(rest, "#")
	authority, path, slash := strings.Cut(rest, "/")
	authority = authority[strings.LastIndex(authority, "@")+1:]
	if slash {
		path = "/" + path
	}
	return head + "://" + authority + path
}

// RemoteSecret returns the part before the host of a remote's URL, or "". It must not be shown.
func RemoteSecret(remote string) string {
	_, rest, is := strings.Cut(remote, "://")
	if !is {
		return ""
	}
	authority, _, _ := strings.Cut(rest, "/")
	return authority[:max(0, strings.LastIndex(authority, "@"))]
}
