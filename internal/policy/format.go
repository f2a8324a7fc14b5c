package policy

import (
	"regexp"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/coppice-dev/coppice/internal/fault"
)

func nothing[T any](*reader, *yaml.Node) (zero T) { return zero }

// documentShape is the table of the file format, from which the parser and the schema are made. Relative paths are
// relative to dir.
func documentShape(dir string) shape[Document] {
	version := key("version", "The version of this format.", whole(FileVersion, FileVersion), func(*Document, int64) {})
	version.needed = true
	return object(nothing[Document],
		version,
		key("tier", "The minimum isolation tier of processes.", said(choice(Tiers()...)),
			func(d *Document, v Said[Tier]) { d.Tier = &v }),
		key("confine", "How tier workspace confines commands: auto (with what the host has), require (or refuse to start), "+
			"off.", said(choice(ConfineAuto, ConfineRequire, ConfineOff)),
			func(d *Document, v Said[Confine]) { d.Confine = &v }),
		key("container", "Tier container.", containerShape(), func(d *Document, v Document) { d.Runtime = v.Runtime }),
		key("strong", "Refuse to start if the host cannot enforce the whole policy.", said(truth()),
			func(d *Document, v Said[bool]) { d.Strong = &v }),
		key("files", "Which files of the host are visible and writable.", filesShape(dir), func(d *Document, v Document) {
			d.Hide, d.Show, d.ReadOnly, d.Writable, d.Mounts, d.Decoys, d.DecoyAt, d.OnTouch = v.Hide, v.Show, v.ReadOnly,
				v.Writable, v.Mounts, v.Decoys, v.DecoyAt, v.OnTouch
		}),
		key("history", "What the history contains.", historyShape(dir),
			func(d *Document, v Document) { d.Ignore = v.Ignore }),
		key("network", "The network: off, host (the host's own network), or rules.", networkShape(),
			func(d *Document, v Said[Access]) { d.Network = &v }),
		key("limits", "Resource limits.", limitShape(),
			func(d *Document, v map[string]Said[int64]) { d.Limits = v }),
		key("memory", "Use of the memory of processes.", memoryShape(),
			func(d *Document, v Document) { d.MemoryFork = v.MemoryFork }),
		key("evidence", "What the audit log stores.", evidenceShape(),
			func(d *Document, v EvidenceSaid) { d.Evidence = &v }),
		key("env", "Environment variables. They are readable inside the sandbox, so they must not be secret.", envShape(),
			func(d *Document, v map[string]Said[string]) { d.Env = v }),
		key("secrets", "Grants of secrets, by name. What a project's file names is a request, which the owner must "+
			"consent to.", secretsShape(), func(d *Document, v map[string]Said[Secret]) { d.Secrets = v }),
	)
}

// filesShape is the shape of the files section, which is read into fields of a Document.
func filesShape(dir string) shape[Document] {
	pathAt := func() shape[Path] {
		return matching(text("a path", func(s string) (Path, error) { return ParsePath(s, dir) }), pathForm)
	}
	paths := func() shape[[]Said[Path]] { return list(said(pathAt()), 0) }
	mount := object(nothing[Mount],
		must(key("from", "The path on the host.", pathAt(), func(m *Mount, p Path) { m.From = p })),
		must(key("to", "The path inside, from / or ~/.", matching(text("a path", insidePath), insideForm),
			func(m *Mount, p Path) { m.To = p })),
		key("mode", "ro (default) or rw. Writes to a rw mount change the host and are not part of the history.",
			choice("ro", "rw"), func(m *Mount, s string) { m.Write = s == "rw" }),
	)
	decoyList := paths()
	decoys := either(
		shape[Document]{truth().schema, "true, false", scalar("!!bool"), func(r *reader, n *yaml.Node) (Document, bool) {
			v, ok := said(truth()).read(r, n)
			return Document{Decoys: &v}, ok
		}},
		shape[Document]{decoyList.schema, "a list of paths", decoyList.fits, func(r *reader, n *yaml.Node) (Document, bool) {
			v, ok := decoyList.read(r, n)
			return Document{DecoyAt: v}, ok
		}},
	)
	return object(nothing[Document],
		key("hide", "Hidden paths, in addition to the built-in ones.", paths(),
			func(d *Document, v []Said[Path]) { d.Hide = v }),
		key("show", "Built-in hidden paths to show. Not allowed in a project's file.", paths(),
			func(d *Document, v []Said[Path]) { d.Show = v }),
		key("readonly", "Read-only paths, with their contents.", paths(),
			func(d *Document, v []Said[Path]) { d.ReadOnly = v }),
		key("writable", "Writable paths; if given, all others are read-only.", paths(),
			func(d *Document, v []Said[Path]) { d.Writable = v }),
		key("mounts", "Paths of the host to mount at other paths inside.", list(said(mount), 0),
			func(d *Document, v []Said[Mount]) { d.Mounts = v }),
		key("decoys", "Put a honeytoken in place of each built-in hidden file (true), or at these paths.", decoys,
			func(d *Document, v Document) { d.Decoys, d.DecoyAt = v.Decoys, v.DecoyAt }),
		key("on_touch",
			"What to do when a honeytoken is opened or sent through the gate: record, or stop, which kills the "+
				"sandbox's processes.", said(choice(TouchRecord, TouchStop)), func(d *Document, v Said[Touch]) { d.OnTouch = &v }),
	)
}

// must makes a key required.
func must[T any](f field[T]) field[T] {
	f.needed = true
	return f
}

// The patterns of the beginnings of paths; ParsePath checks the rest.
const (
	pathForm   = `^(/|~$|~/|\.$|\./)`
	insideForm = `^(/|~/)`
)

// insidePath parses a path inside, which must not be relative.
func insidePath(s string) (Path, error) {
	p, err := ParsePath(s, "/")
	switch {
	case err != nil:
		return Path{}, err
	case s[0] == '.' || s == "~" || s == "/" || strings.HasSuffix(s, "*"):
		return Path{}, fault.New(fault.Invalid, "invalid mount target %q", s).
			WithHint("use a path such as /mnt/data or ~/data")
	}
	return p, nil
}

func networkShape() shape[Said[Access]] {
	mode := choice(NetOff, NetHost)
	plain := shape[Access]{mode.schema, "off, host", mode.fits, func(r *reader, n *yaml.Node) (Access, bool) {
		v, ok := mode.read(r, n)
		return Access{Mode: v}, ok
	}}
	rules := object(func(*reader, *yaml.Node) Access { return Access{Mode: NetRules} },
		key("presets", "Built-in lists of rules.", list(said(choice(PresetNames()...)), 0),
			func(a *Access, v []Said[string]) { a.Presets = v }),
		key("allow", "Allow rules.", list(ruleShape(false), 0), func(a *Access, v []Rule) { a.Allow = v }),
		key("deny", "Deny rules, which take precedence over allow rules.", list(ruleShape(true), 0),
			func(a *Access, v []Rule) { a.Deny = v }),
		key("ask", "Hold connections without a rule until they are approved or denied. Not allowed in a project's "+
			"file.", said(truth()),
			func(a *Access, v Said[bool]) { a.Ask = &v }),
	)
	return said(either(plain, rules))
}

// ruleShape is a rule in its short form or as a mapping.
func ruleShape(denies bool) shape[Rule] {
	place := func(s string) (Rule, error) {
		r := Rule{}
		err := r.place(s)
		return r, err
	}
	short := text("a rule", func(s string) (Rule, error) { return ParseRule(s, denies) })
	sorted := func(all []string) []string { slices.Sort(all); return slices.Compact(all) }
	long := object(func(*reader, *yaml.Node) Rule { return Rule{Denies: denies} },
		key("name", "The name of the rule in decisions and events.", matching(text("a name", ruleName), nameForm),
			func(r *Rule, s string) { r.Name = s }),
		key("host", "A host name, or *.example.com for all names below it.", text("a host", ParsePattern),
			func(r *Rule, p Pattern) { r.Host = p }),
		key("cidr", "An address or an address range.", text("a range of addresses", func(s string) (Rule, error) {
			v, err := place(s)
			if err == nil && !v.Net.IsValid() {
				err = fault.New(fault.Invalid, "invalid address range %q", s).
					WithHint("use a range such as 10.0.0.0/8 or 2001:db8::/32")
			}
			return v, err
		}), func(r *Rule, v Rule) { r.Net = v.Net }),
		key("protocol", "tcp or udp. The default is tcp in an allow rule, and both in a deny rule.", choice(TCP, UDP),
			func(r *Rule, p Protocol) { r.Protocol = p }),
		key("ports", "Ports, or ranges such as \"8000-8100\". The default is 443 in an allow rule, and all in a deny rule.",
			portsShape(), func(r *Rule, p []Ports) { r.Ports = p }),
		key("private", "Allow the host to resolve to addresses of private networks (RFC 1918, CGNAT, unique local), "+
			"which otherwise require an address rule. Only in allow rules, and not in a project's file.", truth(),
			func(r *Rule, v bool) { r.Private = v }),
		key("methods", "HTTP methods.", list(matching(text("a method", parseMethod), `^[A-Z-]{1,32}$`), 1),
			func(r *Rule, m []string) { r.Methods = sorted(m) }),
		key("paths", "HTTP paths such as /v1/items, or /v1/* for all below /v1.",
			list(matching(text("a path", parsePath), `^/`), 1), func(r *Rule, p []string) { r.Paths = sorted(p) }),
		key("query", "The query keys that a request may have, each once, with their values; * matches any.",
			words(`^.{1,256}$`, "key of a query",
				text("a text", func(s string) (string, error) { return s, nil })), func(r *Rule,
				q map[string]string) {
				r.Query = q
			}),
		key("max_request", "Maximum size of one HTTP request, such as "+
			"10MiB.", sizes(), func(r *Rule, n int64) { r.MaxRequest = n }),
		key("max_bytes", "Maximum bytes in total, in both directions, such as "+
			"1GiB.", sizes(), func(r *Rule, n int64) { r.MaxBytes = n }),
		key("rate", "HTTP requests per second, minute or hour, such as 10/s, 100/m or 1000/h.",
			matching(text("a rate", ParseRate), `^[1-9][0-9]{0,6}/[smh]$`), func(r *Rule, v Rate) { r.Rate = v }),
	)
	s := either(short, shape[Rule]{long.schema, long.want, long.fits, func(r *reader, n *yaml.Node) (Rule, bool) {
		v, ok := long.read(r, n)
		if !ok {
			return v, false
		}
		if err := v.settle(); err != nil {
			r.because(n, err)
			return v, false
		}
		return v, true
	}})
	return shape[Rule]{s.schema, s.want, s.fits, func(r *reader, n *yaml.Node) (Rule, bool) {
		v, ok := s.read(r, n)
		if v.At = r.at(n); ok {
			if w := v.warning(); w != "" {
				r.warn(n, "%s", w)
			}
		}
		return v, ok
	}}
}

const nameForm = `^[a-z0-9][a-z0-9_.-]{0,63}$`

func ruleName(s string) (string, error) {
	if ok, err := regexp.MatchString(nameForm, s); !ok || err != nil {
		return "", fault.New(fault.Invalid, "invalid rule name %q", s).
			WithHint("use up to 64 lower-case letters, digits and - _ . such as internal-db")
	}
	return s, nil
}

// portsShape is a list of numbers and ranges.
func portsShape() shape[[]Ports] {
	port := func(s string) (string, error) {
		_, err := parsePorts([]string{s})
		return s, err
	}
	one := either(
		parsed("a port", schema{"type": "integer", "minimum": 1, "maximum": 65535}, port, "!!int"),
		matching(text("a range of ports", port), `^[1-9][0-9]{0,4}(-[1-9][0-9]{0,4})?$`),
	)
	all := list(one, 1)
	return shape[[]Ports]{all.schema, all.want, all.fits, func(r *reader, n *yaml.Node) ([]Ports, bool) {
		texts, ok := all.read(r, n)
		if !ok {
			return nil, false
		}
		ports, err := parsePorts(texts)
		return ports, err == nil
	}}
}

// envShape is the shape of a mapping of variables to values.
func envShape() shape[map[string]Said[string]] {
	value := said(text("a text", func(s string) (string, error) {
		if strings.ContainsRune(s, 0) {
			return "", fault.New(fault.Invalid, "a variable must not contain NUL")
		}
		return s, nil
	}))
	s := words(envForm, "name of a variable", value)
	return shape[map[string]Said[string]]{s.schema, s.want, s.fits,
		func(r *reader, n *yaml.Node) (map[string]Said[string], bool) {
			v, ok := s.read(r, n)
			for i := 0; i+1 < len(n.Content); i += 2 {
				if what := secret(n.Content[i+1].Value); what != "" {
					r.warn(n.Content[i+1], "%s looks like %s, and every process in the sandbox can read it", n.Content[i].Value, what)
				}
			}
			return v, ok
		}}
}

// envForm is the pattern of the names that ParseEnv accepts.
const envForm = `^[A-Za-z_][A-Za-z0-9_]{0,255}$`
