package policy

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/coppice-dev/coppice/internal/visible"
)

// MarshalJSON writes d as a file that Parse reads, since YAML includes JSON. Equal documents have equal texts, whatever
// the origins of their settings.
func (d Document) MarshalJSON() ([]byte, error) {
	out := map[string]any{"version": FileVersion}
	put(out, "tier", d.Tier)
	put(out, "confine", d.Confine)
	if d.Runtime != nil {
		out["container"] = map[string]any{"runtime": d.Runtime.Value}
	}
	put(out, "strong", d.Strong)
	files := map[string]any{}
	putList(files, "hide", d.Hide)
	putList(files, "show", d.Show)
	putList(files, "readonly", d.ReadOnly)
	putList(files, "writable", d.Writable)
	putList(files, "mounts", d.Mounts)
	put(files, "decoys", d.Decoys)
	putList(files, "decoys", d.DecoyAt)
	put(files, "on_touch", d.OnTouch)
	if len(files) > 0 {
		out["files"] = files
	}
	if d.Ignore != nil {
		out["history"] = map[string]any{"ignore": values(d.Ignore)}
	}
	if d.Network != nil {
		out["network"] = d.Network.Value.file()
	}
	if d.MemoryFork != nil {
		out["memory"] = map[string]any{"fork": d.MemoryFork.Value}
	}
	if d.Limits != nil {
		l := map[string]any{}
		for _, one := range limits() {
			if v, ok := d.Limits[one.name]; ok {
				l[one.name] = one.write(v.Value)
			}
		}
		out["limits"] = l
	}
	if d.Evidence != nil {
		out["evidence"] = d.Evidence.file()
	}
	if d.Env != nil {
		env := map[string]string{}
		for k, v := range d.Env {
			env[k] = v.Value
		}
		out["env"] = env
	}
	if d.Secrets != nil {
		secrets := map[string]Secret{}
		for k, v := range d.Secrets {
			secrets[k] = v.Value
		}
		out["secrets"] = secrets
	}
	return marshal(out)
}

func put[T any](out map[string]any, key string, v *Said[T]) {
	if v != nil {
		out[key] = v.Value
	}
}

func putList[T any](out map[string]any, key string, list []Said[T]) {
	if list != nil {
		out[key] = values(list)
	}
}

func values[T any](list []Said[T]) []T {
	all := []T{}
	for _, v := range list {
		all = append(all, v.Value)
	}
	return all
}

// file returns the value of the key network.
func (a Access) file() any {
	if a.Mode != NetRules {
		return a.Mode
	}
	out := map[string]any{}
	putList(out, "presets", a.Presets)
	if a.Allow != nil {
		out["allow"] = a.Allow
	}
	if a.Deny != nil {
		out["deny"] = a.Deny
	}
	put(out, "ask", a.Ask)
	return out
}

// MarshalJSON writes m as in a policy file.
func (m Mount) MarshalJSON() ([]byte, error) {
	return marshal(map[string]string{"from": m.From.String(), "to": m.To.String(), "mode": m.mode()})
}

func (m Mount) mode() string {
	if m.Write {
		return "rw"
	}
	return "ro"
}

// marshal writes JSON without the escapes for HTML, and with those that Parse requires.
func marshal(v any) ([]byte, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return nil, err
	}
	var out bytes.Buffer
	for _, c := range strings.TrimSuffix(b.String(), "\n") {
		if !visible.Rune(c) {
			fmt.Fprintf(&out, `\u%04x`, c) // inside a string: everything outside is ASCII
			continue
		}
		out.WriteRune(c)
	}
	return out.Bytes(), nil
}
