package policy

import (
	"bytes"
	"encoding/json"

	"go.yaml.in/yaml/v3"

	"github.com/coppice-dev/coppice/internal/fault"
)

// Secret is a grant in the section secrets, as one JSON object in canonical form; its key in the section is its name.
// This package knows the form of grants, and not their meaning: package grant parses them, and merges the levels.
type Secret string

// MarshalJSON writes s as in a policy file.
func (s Secret) MarshalJSON() ([]byte, error) { return []byte(s), nil }

// SecretOf returns the grant that v is marshaled as.
func SecretOf(v any) (Secret, error) {
	text, err := json.Marshal(v)
	if err != nil {
		return "", err
	}
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	var e secretEntry
	if err := d.Decode(&e); err != nil {
		return "", err
	}
	text, err = marshal(e)
	return Secret(text), err
}

// secretEntry is a Secret that is being read: its keys and values.
type secretEntry map[string]any

// secretKey returns a field of a Secret.
func secretKey[V any](name, doc string, s shape[V]) field[secretEntry] {
	return key(name, doc, s, func(to *secretEntry, v V) { (*to)[name] = v })
}

// secretWord is a text of printable ASCII characters: it is shown to the owner, who decides about it, and no other
// character must look like it.
func secretWord() shape[string] {
	return matching(text("a short text of printable ASCII characters", func(s string) (string, error) { return s, nil }),
		`^[ -~]{1,256}$`)
}

// hostKey is a key of an SSH server.
func hostKey() shape[string] {
	return matching(text("a key such as ssh-ed25519 AAAA..., or a fingerprint SHA256:...",
		func(s string) (string, error) { return s, nil }), `^(SHA256:|ssh-|ecdsa-)[ -~]{1,1000}$`)
}

// secretsShape is the shape of the section secrets.
func secretsShape() shape[map[string]Said[Secret]] {
	words1 := func() shape[[]string] { return list(secretWord(), 1) }
	paths := func() shape[[]string] { return list(matching(secretWord(), `^/`), 1) }
	methods := func() shape[[]string] { return list(matching(text("a method", parseMethod), `^[A-Z-]{1,32}$`), 1) }
	start := func(*reader, *yaml.Node) secretEntry { return secretEntry{} }
	in := secretKey("in", "The part of the request: header, bearer, basic, git, query, path or cookie; and others, which "+
		"coppice grant names.", secretWord())
	in.needed = true
	site := object(start, in,
		secretKey("name", "The name of the header, the cookie or the key.", secretWord()),
		secretKey("part", "The word before the secret in a header; user or password with basic and git.", secretWord()),
		secretKey("pointer", "A JSON pointer, for a site in a body.", secretWord()),
		secretKey("methods", "Only requests with these HTTP methods.", methods()),
		secretKey("paths", "Only requests with these HTTP paths.", paths()),
		secretKey("services", "Services of AWS, for a signature.", words1()),
		secretKey("regions", "Regions of AWS, for a signature.", words1()),
	)
	one := object(start,
		secretKey("secret", "The name of the secret. The default is the name of the grant.", secretWord()),
		secretKey("preset", "The service whose hosts, sites and variables are the defaults. The default is the preset with "+
			"the name of the grant.", secretWord()),
		secretKey("kind", "The kind of the placeholder. The default is that of the secret.", secretWord()),
		secretKey("hosts", "The hosts that requests may carry the secret to.", words1()),
		secretKey("ports", "The ports of the hosts. The default is 443.", list(whole(1, 65535), 1)),
		secretKey("methods", "The HTTP methods of requests that may carry the secret.", methods()),
		secretKey("paths", "The HTTP paths of requests that may carry the secret, as in rules.", paths()),
		secretKey("query", "The query keys that such a request may have, with their values; * matches any.",
			words(`^[ -~]{1,256}$`, "key of a query", secretWord())),
		secretKey("sites", "Where in a request the secret stands.", list(site, 1)),
		secretKey("host_keys", "The keys of the SSH server, as in known_hosts, or fingerprints SHA256:...",
			list(hostKey(), 1)),
		secretKey("except", "Paths to allow although the preset refuses them. Not allowed in a project's file.", paths()),
		secretKey("mode", "Replace the placeholder (default), require it, or add the secret without one.",
			choice("replace", "require", "add")),
		secretKey("env", "Variables of commands that have the placeholder.", words1()),
		secretKey("for", "How long the grant lasts, such as 8h. By default it does not expire.",
			matching(text("a time such as 8h", parseTime), `^([0-9]+(\.[0-9]+)?(ns|us|ms|s|m|h))+$`).asWritten()),
		secretKey("uses", "How many requests may carry the secret. By default they are unlimited.", whole(1, 1<<53)),
		secretKey("rate", "How many of them per second, minute or hour, such as 10/s.",
			matching(text("a rate", ParseRate), `^[1-9][0-9]{0,6}/[smh]$`).asWritten()),
		secretKey("ask", "Whether requests that would carry the secret wait for approval: never (default), first (the first "+
			"to each host) or each.", choice("never", "first", "each")),
		secretKey("fork", "Whether forks get the grant: none (default), or reissue.", choice("none", "reissue")),
		secretKey("insecure", "Send the secret also without TLS, to the ports. Not allowed in a project's file.", truth()),
		secretKey("optional", "Create the sandbox without the grant if it cannot be given.", truth()),
	)
	entry := shape[Secret]{one.schema, one.want, one.fits, func(r *reader, n *yaml.Node) (Secret, bool) {
		v, ok := one.read(r, n)
		if !ok {
			return "", false
		}
		out, err := marshal(v)
		if err != nil {
			r.because(n, err)
		}
		return Secret(out), err == nil
	}}
	all := words(nameForm, "name of a grant", said(entry))
	return shape[map[string]Said[Secret]]{all.schema, all.want, all.fits,
		func(r *reader, n *yaml.Node) (map[string]Said[Secret], bool) {
			if most := maxSecrets; len(n.Content)/2 > most {
				r.wrong(n, "keep those that are needed", "%d grants; the limit is %d", len(n.Content)/2, most)
				return nil, false
			}
			out, ok := all.read(r, n)
			for i := 0; i+1 < len(n.Content); i += 2 {
				if v, is := out[n.Content[i].Value]; is { // the line of its name, not that of its first key
					v.At = r.at(n.Content[i])
					out[n.Content[i].Value] = v
				}
			}
			return out, ok
		}}
}

// maxSecrets is the maximum number of grants in a file.
const maxSecrets = 100

// asWritten is a text that s accepts.
func (s shape[T]) asWritten() shape[string] {
	return shape[string]{s.schema, s.want, s.fits, func(r *reader, n *yaml.Node) (string, bool) {
		_, ok := s.read(r, n)
		return n.Value, ok
	}}
}

// sameSecrets returns the problem of two files of one level that say different things about a grant.
func sameSecrets(a, b Document) Problems {
	var all Problems
	for _, name := range names(b.Secrets) {
		v := b.Secrets[name]
		if w, ok := a.Secrets[name]; ok && w.Value != v.Value {
			all = append(all, Problem{File: v.At.Source, Line: v.At.Line, Hint: "remove one of them",
				Message: "grant " + name + " is different at " + w.At.String()})
		}
	}
	return all
}

// Fault returns one error of kind Invalid for the problems of a policy; nil without problems.
func (p Problems) Fault() error { return p.fault("the policy", fault.Invalid) }

// Sorted sorts p by file, line and column, and returns it.
func (p Problems) Sorted() Problems { return p.sorted() }
