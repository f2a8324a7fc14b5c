//go:build linux

package engine

import (
	"slices"
	"strings"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/fault"
)

// choice is a property of a sandbox with several possible values, such as its driver. A host provides some of the
// values.
type choice struct {
	what      string
	group     string   // the group of the probe's items
	names     []string // the values that auto chooses from, strongest first
	nested    bool     // a value needs everything that the values after it need
	why       string   // the reason that is given for a value that auto chose
	otherwise string   // added to the hint if auto can choose no value
}

// drivers are the storage drivers.
var drivers = choice{what: "driver", group: "drivers", names: []string{"overlay", "btrfs", "copy"},
	why: "the strongest driver that this host supports"}

// pick returns asked or, for auto, best. It returns an error if the host does not support that value, or if the probe
// could not determine it.
func (c choice) pick(p wire.ProbeReport, asked, best string) (got, why string, err error) {
	if asked == "" || asked == "auto" {
		for _, name := range c.names {
			if name == best {
				break
			}
			if it, ok := c.item(p, name); ok && it.Unknown {
				return "", "", c.unknown(it)
			}
		}
		if !slices.Contains(c.names, best) {
			hint := "see what the host lacks: coppice system probe"
			if it, ok := c.item(p, c.least()[0]); ok && it.Remedy != "" {
				hint = it.Remedy + "; " + hint
			}
			return "", "", fault.New(fault.Unsupported, "this host supports no %s (%s)", c.what, c.lacksAll(p)).
				WithHint("%s", hint+c.otherwise)
		}
		why = c.why
		if lacks := c.lacks(p, best); lacks != "" {
			why += "; not " + lacks
		}
		return best, why, nil
	}
	it, ok := c.item(p, asked)
	switch {
	case !ok:
		return "", "", fault.New(fault.Invalid, "unknown %s %q", c.what, asked).
			WithHint("see what this host supports: coppice system probe")
	case it.Unknown:
		return "", "", c.unknown(it)
	case !it.OK:
		f := fault.New(fault.Unsupported, "this host does not support %s %s: %s", c.what, asked, it.Detail)
		return "", "", f.WithHint("%s", it.Remedy)
	}
	return asked, "requested", nil
}

// unknown returns the error of an item that the probe could not determine.
func (c choice) unknown(it wire.ProbeItem) error {
	return fault.New(fault.Unavailable, "cannot determine whether this host supports %s %s: %s", c.what,
		it.Name, it.Detail).
		WithHint("%s", it.Remedy)
}

// best returns the strongest value that the host provides; "" if there is none.
func (c choice) best(p wire.ProbeReport) string {
	for _, name := range c.names {
		if it, ok := c.item(p, name); ok && it.OK {
			return name
		}
	}
	return ""
}

// least returns the values that say what a host without any value lacks: in a nested choice the last one, whose needs
// the others share.
func (c choice) least() []string {
	if c.nested {
		return c.names[len(c.names)-1:]
	}
	return c.names
}

// lacksAll returns why the host can provide no value.
func (c choice) lacksAll(p wire.ProbeReport) string {
	c.names = c.least()
	return c.lacks(p, "")
}

// lacks returns why the host cannot provide anything stronger than got.
func (c choice) lacks(p wire.ProbeReport, got string) string {
	var out []string
	for _, name := range c.names {
		if name == got {
			break
		}
		if it, ok := c.item(p, name); ok && !it.OK {
			out = append(out, name+": "+it.Detail)
		}
	}
	return strings.Join(out, ", nor ")
}

func (c choice) item(p wire.ProbeReport, name string) (wire.ProbeItem, bool) {
	for _, it := range p.Items {
		if it.Group == c.group && it.Name == name {
			return it, true
		}
	}
	return wire.ProbeItem{}, false
}

// pickLimited is pick for a sandbox with a disk limit: the strongest driver that the host provides and
// that can enforce the limit. able is the result of diskAble; plain excludes drivers because the host
// is the base.
func (c choice) pickLimited(
	p wire.ProbeReport, asked string, able map[string]error, host bool, plain func(string) bool,
) (got, why string, err error) {
	if asked != "" && asked != "auto" {
		if got, why, err = c.pick(p, asked, ""); err == nil {
			err = able[got]
		}
		return got, why, err
	}
	var lacks []string
	var first error
	for _, name := range c.names {
		lack, known := able[name]
		switch {
		case host && plain(name):
			continue
		case !known:
			if it, ok := c.item(p, name); ok {
				lacks = append(lacks, name+": "+it.Detail)
			}
		case lack == nil:
			why = "the strongest " + c.what + " that can enforce the disk limit here"
			if lacks != nil {
				why += "; not " + strings.Join(lacks, ", nor ")
			}
			return name, why, nil
		default:
			if lacks = append(lacks, name+": "+lack.Error()); first == nil {
				first = lack
			}
		}
	}
	if near := able["btrfs"]; near != nil && !host {
		return "", "", near // the store is on btrfs, where only driver btrfs can enforce the limit
	}
	if first == nil { // the host provides no driver, with or without a limit
		return c.pick(p, "", "")
	}
	return "", "", first
}
