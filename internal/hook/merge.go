package hook

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/coppice-dev/coppice/internal/fault"
)

// Merge returns the file old with Coppice's hooks added. Everything else is kept, in its order and as it was written,
// except for white space. Existing hooks of Coppice are replaced, unless they were combined with others by hand: then
// they stay as they are. An empty old means no file. A file that cannot be parsed is an Invalid fault.
func (h Harness) Merge(old []byte) ([]byte, error) {
	if h.whole != "" {
		if len(old) > 0 && !bytes.Contains(old, []byte(socket)) {
			return nil, fault.New(fault.Exists, "it is not the Coppice plugin")
		}
		return []byte(h.whole), nil
	}
	top := object{members: h.first}
	if len(bytes.TrimSpace(old)) > 0 {
		var err error
		if top, err = parseObject(old, "the file"); err != nil {
			return nil, err
		}
	}
	hooks, err := parseObject(top.get("hooks"), `"hooks"`)
	if err != nil {
		return nil, err
	}
	for _, e := range h.events {
		list, err := parseList(hooks.get(e.name), e.name)
		if err != nil {
			return nil, err
		}
		ours, err := h.handler(e)
		if err != nil {
			return nil, err
		}
		if list, err = h.place(list, ours); err != nil {
			return nil, err
		}
		b, err := encode(list)
		if err != nil {
			return nil, err
		}
		hooks.set(e.name, b)
	}
	top.set("hooks", hooks.encode())
	var out bytes.Buffer
	if err := json.Indent(&out, top.encode(), "", "  "); err != nil {
		return nil, fmt.Errorf("write the hooks: %w", err)
	}
	out.WriteByte('\n')
	return out.Bytes(), nil
}

// place puts Coppice's hook into a list, in place of an earlier version or at the end.
func (h Harness) place(list []json.RawMessage, ours json.RawMessage) ([]json.RawMessage, error) {
	at := -1
	var out []json.RawMessage
	for _, entry := range list {
		if !bytes.Contains(entry, []byte(socket)) {
			out = append(out, entry)
			continue
		}
		var group struct {
			Hooks []json.RawMessage `json:"hooks"`
		}
		if !h.bare {
			if err := json.Unmarshal(entry, &group); err != nil {
				return nil, malformed("an entry of the hooks", err)
			}
		}
		if len(group.Hooks) > 1 {
			return list, nil
		}
		if at < 0 {
			at = len(out)
			out = append(out, ours)
		}
	}
	if at < 0 {
		out = append(out, ours)
	}
	return out, nil
}

// object is a JSON object whose members keep their order and text.
type object struct{ members []member }

type member struct {
	key   string
	value json.RawMessage
}

func (o *object) get(key string) json.RawMessage {
	for _, m := range o.members {
		if m.key == key {
			return m.value
		}
	}
	return nil
}

func (o *object) set(key string, v json.RawMessage) {
	for i, m := range o.members {
		if m.key == key {
			o.members[i].value = v
			return
		}
	}
	o.members = append(o.members[:len(o.members):len(o.members)], member{key, v})
}

func (o *object) encode() json.RawMessage {
	var b bytes.Buffer
	b.WriteByte('{')
	for i, m := range o.members {
		if i > 0 {
			b.WriteByte(',')
		}
		key, _ := encode(m.key) // a string
		b.Write(key)
		b.WriteByte(':')
		b.Write(m.value)
	}
	b.WriteByte('}')
	return b.Bytes()
}

// parseObject parses an object. what names it in errors.
func parseObject(text json.RawMessage, what string) (o object, err error) {
	if text == nil {
		return o, nil
	}
	dec := json.NewDecoder(bytes.NewReader(text))
	t, err := dec.Token()
	if err == nil && t != json.Delim('{') {
		err = errors.New("expected an object")
	}
	seen := map[string]bool{}
	for err == nil && dec.More() {
		var key json.Token
		if key, err = dec.Token(); err != nil {
			break
		}
		m := member{key: key.(string)}
		if err = dec.Decode(&m.value); err == nil && seen[m.key] {
			err = fmt.Errorf("duplicate key %q", m.key)
		}
		seen[m.key] = true
		o.members = append(o.members, m)
	}
	if err == nil {
		_, err = dec.Token()
	}
	if err == nil {
		if _, rest := dec.Token(); !errors.Is(rest, io.EOF) {
			err = errors.New("trailing data")
		}
	}
	if err != nil {
		return object{}, malformed(what, err)
	}
	return o, nil
}

func parseList(text json.RawMessage, what string) (list []json.RawMessage, err error) {
	if text == nil {
		return nil, nil
	}
	if err := json.Unmarshal(text, &list); err != nil || list == nil {
		return nil, malformed(what, errors.Join(err, errors.New("expected a list")))
	}
	return list, nil
}

func malformed(what string, err error) error {
	return fault.New(fault.Invalid, "invalid hooks in %s", what).Because(err)
}

// encode encodes JSON without escaping < and >.
func encode(v any) (json.RawMessage, error) {
	var b strings.Builder
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return nil, fmt.Errorf("write the hooks: %w", err)
	}
	return json.RawMessage(strings.TrimSuffix(b.String(), "\n")), nil
}
