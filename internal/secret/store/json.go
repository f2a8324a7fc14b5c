package store

import (
	"encoding/json"
	"strconv"
	"strings"
	"time"

	"github.com/coppice-dev/coppice/internal/fault"
)

// pointer splits a JSON pointer (RFC 6901) into its keys.
func pointer(p string) ([]string, error) {
	if !strings.HasPrefix(p, "/") {
		return nil, fault.New(fault.Invalid, "invalid JSON pointer %.80q: must begin with /", p)
	}
	keys := strings.Split(p[1:], "/")
	for i, k := range keys {
		if rest := strings.NewReplacer("~0", "", "~1", "").Replace(k); strings.Contains(rest, "~") || hasControl(k) {
			return nil, fault.New(fault.Invalid, "invalid JSON pointer %.80q: ~ must be written ~0, and / in a key ~1", p)
		}
		keys[i] = strings.NewReplacer("~1", "/", "~0", "~").Replace(k)
	}
	return keys, nil
}

// object is a JSON object whose members are parsed on demand, by their exact names.
type object map[string]json.RawMessage

// find returns what p points to in doc, and the object that contains it, which is nil for an element of an array.
func find(doc []byte, p string) (json.RawMessage, object, error) {
	keys, err := pointer(p)
	if err != nil {
		return nil, nil, err
	}
	at := json.RawMessage(doc)
	var in object
	for i, k := range keys {
		var many []json.RawMessage
		in = nil
		if json.Unmarshal(at, &in) == nil && in != nil {
			next, ok := in[k]
			if !ok {
				return nil, nil, fault.New(fault.NotFound, "/%s not found", strings.Join(keys[:i+1], "/"))
			}
			at = next
			continue
		}
		if json.Unmarshal(at, &many) != nil {
			if i == 0 && !json.Valid(doc) {
				return nil, nil, fault.New(fault.Invalid, "it is not JSON")
			}
			return nil, nil, fault.New(fault.NotFound, "/%s not found", strings.Join(keys[:i+1], "/"))
		}
		n, err := strconv.ParseUint(k, 10, 31)
		if err != nil || k != strconv.FormatUint(n, 10) || n >= uint64(len(many)) {
			return nil, nil, fault.New(fault.NotFound, "/%s not found", strings.Join(keys[:i+1], "/"))
		}
		at, in = many[n], nil
	}
	return at, in, nil
}

// text returns the string that raw is, or Invalid. The error does not contain it.
func text(raw json.RawMessage, name string) ([]byte, error) {
	var s string
	if len(raw) == 0 || raw[0] != '"' || json.Unmarshal(raw, &s) != nil {
		return nil, fault.New(fault.Invalid, "%s is not a string", name)
	}
	return []byte(s), nil
}

// expires returns the time in the first of the given members of o that exists, or zero. Times are in RFC 3339, or
// numbers since 1970: of seconds, or of milliseconds from the year 5138 in seconds on.
func (o object) expires(names ...string) (time.Time, error) {
	for _, name := range names {
		raw, ok := o[name]
		if !ok || string(raw) == "null" {
			continue
		}
		var s string
		if json.Unmarshal(raw, &s) == nil {
			if s == "" {
				continue
			}
			if at, err := time.Parse(time.RFC3339, s); err == nil {
				return at, nil
			}
		} else if n, err := strconv.ParseInt(string(raw), 10, 64); err == nil && n > 0 {
			if n < 1e11 {
				n *= 1000
			}
			return time.UnixMilli(n), nil
		}
		return time.Time{}, fault.New(fault.Invalid, "invalid %s: must be a time such as 2006-01-02T15:04:05Z", name)
	}
	return time.Time{}, nil
}

// user returns the string in member name of o, or "".
func (o object) user(name string) (string, error) {
	raw, ok := o[name]
	if !ok || string(raw) == "null" {
		return "", nil
	}
	b, err := text(raw, name)
	if err != nil || len(b) > 256 || hasControl(string(b)) {
		return "", fault.New(fault.Invalid, "invalid %s: must be a string of at most 256 bytes", name)
	}
	return string(b), nil
}

// expired returns Unavailable if until has passed.
func expired(until, now time.Time) error {
	if until.IsZero() || now.Before(until) {
		return nil
	}
	return fault.New(fault.Unavailable, "the value expired at %s", until.UTC().Format(time.RFC3339)).
		WithHint("log in again with the program that keeps it, which renews it")
}
