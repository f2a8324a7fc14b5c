package grant

import (
	"fmt"
	"net/textproto"
	"slices"
	"strings"

	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/policy"
)

// In is the part of a request that a secret stands in.
type In string

// The parts. Set.Decide finds those up to SigV4 in the head of a request; of InForm and InJSON, which are in the body,
// it only decides whether the request may have them. The others are not HTTP.
const (
	InHeader   In = "header"   // header Name; Part is a word before the secret, such as token
	InBearer   In = "bearer"   // header Authorization, scheme Bearer
	InBasic    In = "basic"    // header Authorization, scheme Basic; Part is password or user
	InGit      In = "git"      // as InBasic, in the requests of git only
	InQuery    In = "query"    // value of the query's key Name
	InPath     In = "path"     // one whole part of the path
	InCookie   In = "cookie"   // value of the cookie Name
	InSigV4    In = "sigv4"    // signature of AWS (version 4)
	InForm     In = "form"     // value of the form's field Name
	InJSON     In = "json"     // string at Pointer
	InMetadata In = "metadata" // token of the metadata service; Name is its provider
	InSSH      In = "ssh"      // login of user Name, by default git
	InPostgres In = "postgres" // user Name of database Part
)

// Ins returns all parts of requests.
func Ins() []In {
	return []In{InHeader, InBearer, InBasic, InGit, InQuery, InPath, InCookie, InSigV4, InForm, InJSON, InMetadata, InSSH,
		InPostgres}
}

// Site is a place in requests where a secret may stand.
type Site struct {
	In      In
	Name    string // for a header in canonical form
	Part    string
	Pointer string // of RFC 6901
	// At limits the site to some requests. A site in a body requires methods and paths: otherwise any endpoint that
	// stores what it gets would publish the secret.
	At policy.Requests
	// Services and Regions limit SigV4; nil is any. Refused are services that Services must name to be allowed.
	Services, Regions, Refused []string
}

// ParseSite parses the short form of a site: IN, IN:NAME or IN:NAME:PART, such as "bearer", "header:X-Api-Key",
// "header:Authorization:token", "basic:user", "query:key", "json:/a/b", or "sigv4:REGION/SERVICE", in which * is any. A
// site in a body also requires At.
func ParseSite(text string) (Site, error) {
	word, rest, _ := strings.Cut(text, ":")
	in, err := oneOf("site", word, Ins())
	s := Site{In: in}
	switch {
	case err != nil:
		return Site{}, err
	case in == InJSON:
		s.Pointer = rest
	case in == InBasic || in == InGit:
		s.Part = rest
	case in == InSigV4 && rest != "":
		region, service, ok := strings.Cut(rest, "/")
		if !ok {
			return Site{}, fault.New(fault.Invalid, "invalid site %q: no service", text).
				WithHint("use sigv4:REGION/SERVICE, such as sigv4:eu-west-1/s3; * is any")
		}
		s.Regions, s.Services = listed(region), listed(service)
	default:
		s.Name, s.Part, _ = strings.Cut(rest, ":")
	}
	return s.checked()
}

// listed returns the names in a list with commas, or nil for *, which is any.
func listed(text string) []string {
	if text == "*" {
		return nil
	}
	return strings.Split(text, ",")
}

// list returns names as listed reads them.
func list(names []string) string {
	if names == nil {
		return "*"
	}
	return strings.Join(names, ",")
}

// String returns s in the short form, without At.
func (s Site) String() string {
	text := string(s.In)
	switch {
	case s.In == InBearer:
	case s.In == InSigV4 && (s.Regions != nil || s.Services != nil):
		text += ":" + list(s.Regions) + "/" + list(s.Services)
	case s.In == InJSON:
		text += ":" + s.Pointer
	case s.In == InBasic || s.In == InGit:
		text += ":" + s.Part
	case s.Name != "":
		if text += ":" + s.Name; s.Part != "" {
			text += ":" + s.Part
		}
	}
	return text
}

// InBody reports whether the secret is in the body of a request.
func (s Site) InBody() bool { return s.In == InForm || s.In == InJSON }

// inHead reports whether the secret is in the head of an HTTP request.
func (s Site) inHead() bool {
	return !s.InBody() && s.In != InMetadata && s.In != InSSH && s.In != InPostgres
}

// framing are headers that a secret must not be in: they say where requests end, or where they go.
var framing = [...]string{"Connection", "Content-Length", "Host", "Keep-Alive", "Te", "Trailer", "Transfer-Encoding",
	"Upgrade"}

// checked returns s with defaults, or an error.
func (s Site) checked() (Site, error) {
	no := func(hint, format string, args ...any) (Site, error) {
		return Site{}, fault.New(fault.Invalid, "invalid site %s: %s", s, fmt.Sprintf(format, args...)).WithHint("%s", hint)
	}
	named := slices.Contains([]In{InHeader, InQuery, InCookie, InForm, InMetadata, InPostgres, InBearer, InSSH}, s.In)
	parted := slices.Contains([]In{InHeader, InBasic, InGit, InPostgres, InBearer}, s.In)
	switch {
	case !slices.Contains(Ins(), s.In):
		_, err := oneOf("site", string(s.In), Ins())
		return Site{}, err
	case !named && s.Name != "":
		return no("leave out "+s.Name, "%s has no name", s.In)
	case !parted && s.Part != "":
		return no("leave out "+s.Part, "%s has no part", s.In)
	case s.In != InJSON && s.Pointer != "", s.In != InSigV4 && (s.Services != nil || s.Regions != nil):
		return no("pointer is for json, services and regions are for sigv4", "it has a field of another site")
	}
	switch s.In {
	case InHeader:
		if s.Name = textproto.CanonicalMIMEHeaderKey(s.Name); !token(s.Name) || slices.Contains(framing[:], s.Name) {
			return no("name a header such as header:X-Api-Key", "a secret cannot be in header %q", s.Name)
		}
		if s.Part != "" && !token(s.Part) || s.Name == "Cookie" {
			return no("use header:Authorization:token for a word before the secret, or cookie:NAME", "invalid part")
		}
	case InBearer:
		if s.Name != "" && s.Name != "Authorization" || s.Part != "" && s.Part != "Bearer" {
			return no("use header:NAME:Bearer for another header", "it is always in header Authorization")
		}
		s.Name, s.Part = "Authorization", "Bearer"
	case InBasic, InGit:
		if s.Part == "" {
			s.Part = "password"
		}
		if part, err := oneOf("part", s.Part, []string{"password", "user"}); err != nil || part == "" {
			return Site{}, err
		}
	case InQuery, InCookie, InForm:
		if !token(s.Name) || s.In != InCookie && strings.ContainsAny(s.Name, "&%+#") {
			return no("name it, such as "+string(s.In)+":key", "invalid name %q", s.Name)
		}
	case InMetadata:
		if _, err := oneOf("provider", s.Name, []string{"aws", "gcp", "azure"}); err != nil {
			return Site{}, err
		}
	case InSSH:
		if s.Name != "" && (strings.Trim(s.Name, alnum+"._-") != "" || strings.HasPrefix(s.Name, "-")) {
			return no("use ssh:USER, or ssh for user "+DefaultSSHUser, "invalid user %q", s.Name)
		}
	case InPostgres:
		if s.Name == "" || s.Part == "" || strings.ContainsAny(s.Name+s.Part, "\x00") {
			return no("use postgres:USER:DATABASE", "it requires a user and a database")
		}
	case InSigV4:
		for _, name := range slices.Concat(s.Regions, s.Services) {
			if name == "" || strings.Trim(name, alnum+"-") != "" {
				return no("name a region such as eu-west-1, and a service as in signatures, such as s3", "invalid name %q", name)
			}
		}
	case InJSON:
		if !strings.HasPrefix(s.Pointer, "/") || strings.Contains(strings.NewReplacer("~0", "", "~1", "").Replace(s.Pointer),
			"~") {
			return no("use a JSON pointer such as json:/auth/token (RFC 6901)", "invalid pointer %q", s.Pointer)
		}
	}
	return s, nil
}

// token reports whether s is a token of HTTP (RFC 9110).
func token(s string) bool {
	return s != "" && strings.Trim(s, alnum+"!#$%&'*+-.^_`|~") == ""
}
