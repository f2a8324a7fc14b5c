package store

import (
	"bytes"
	"encoding/json"
	"time"

	"github.com/coppice-dev/coppice/internal/fault"
)

// parseOutput parses what a command printed:
//
//	{"value": "...", "expires": TIME, "user": "..."}              expires and user are optional
//	{"Version": 1, "AccessKeyId": "...", "SecretAccessKey": "...", "SessionToken": "...", "Expiration": TIME}
//	                                                              credential_process of AWS; the last two are optional,
//	                                                              and the value is ID:SECRET or ID:SECRET:TOKEN
//	anything else, also another object                            the value itself
//
// With first, the value is the first line, and is not parsed. The result shares no memory with out.
func parseOutput(out []byte, first bool, now time.Time) (Value, error) {
	if first {
		line, _, _ := bytes.Cut(out, []byte("\n"))
		return newValue(bytes.Clone(bytes.TrimSuffix(line, []byte("\r"))))
	}
	var o object
	if trimmed := bytes.TrimSpace(out); len(trimmed) > 0 && trimmed[0] == '{' && json.Unmarshal(trimmed, &o) == nil {
		if _, ok := o["value"]; ok {
			return o.value("value", "expires", "user", now)
		}
		if _, ok := o["AccessKeyId"]; ok {
			return o.ofAWS(now)
		}
	}
	return newValue(bytes.Clone(withoutNewline(out)))
}

// value returns the value in member name, with the time and the user in two others.
func (o object) value(name, expires, user string, now time.Time) (Value, error) {
	until, err := o.expires(expires)
	if err != nil {
		return Value{}, err
	}
	if err := expired(until, now); err != nil {
		return Value{}, err
	}
	who, err := o.user(user)
	if err != nil {
		return Value{}, err
	}
	b, err := text(o[name], name)
	if err != nil {
		return Value{}, err
	}
	v, err := newValue(b)
	v.Until, v.User = until, who
	return v, err
}

// ofAWS returns the credentials that credential_process of AWS prints, as ID:SECRET or ID:SECRET:TOKEN:
// https://docs.aws.amazon.com/sdkref/latest/guide/feature-process-credentials.html
func (o object) ofAWS(now time.Time) (Value, error) {
	if string(o["Version"]) != "1" {
		return Value{}, fault.New(fault.Version, "unknown version of credentials of AWS: must be 1")
	}
	v, err := o.value("SecretAccessKey", "Expiration", "AccessKeyId", now)
	if err != nil {
		return Value{}, err
	}
	if v.User == "" {
		v.Close()
		return Value{}, fault.New(fault.Invalid, "AccessKeyId is empty")
	}
	defer v.Close()
	parts := [][]byte{[]byte(v.User), v.Bytes()}
	if raw, ok := o["SessionToken"]; ok && string(raw) != "null" && string(raw) != `""` {
		token, err := text(raw, "SessionToken")
		if err != nil {
			return Value{}, err
		}
		defer wipe(token)
		parts = append(parts, token)
	}
	whole, err := newValue(bytes.Join(parts, []byte(":")))
	whole.Until, whole.User = v.Until, v.User
	return whole, err
}
