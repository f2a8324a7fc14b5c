package sigv4

import (
	"errors"
	"fmt"
	"net/http"
	"net/textproto"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Request is what the signature of a request says.
type Request struct {
	// ID is the access key's, and Region and Service are what the signature is for.
	ID, Region, Service string

	time    time.Time
	stamp   string // time, as it is signed
	signed  []string
	query   bool          // the signature is in the query
	expires time.Duration // of a signature in the query
	payload string        // what is signed of the body; "" is its hash, which the caller gets
}

const (
	algorithm = "AWS4-HMAC-SHA256"
	ending    = "aws4_request"
	layout    = "20060102T150405Z"

	unsigned         = "UNSIGNED-PAYLOAD"
	unsignedTrailer  = "STREAMING-UNSIGNED-PAYLOAD-TRAILER"
	streaming        = "STREAMING-AWS4-HMAC-SHA256-PAYLOAD"
	streamingTrailer = "STREAMING-AWS4-HMAC-SHA256-PAYLOAD-TRAILER"

	// skew is how much the time of a request may differ from the clock, as AWS has it.
	skew = 15 * time.Minute
	// longest is how long a signature in a query may be valid, as AWS has it.
	longest = 7 * 24 * time.Hour
	// maxSigned is the maximum number of signed headers, and maxName that of the length of each name, and of each part of
	// a scope.
	maxSigned = 100
	maxName   = 128
)

// Errors of Parse for what is valid, but cannot be signed here.
var (
	errAsymmetric = errors.New("signatures of version 4A, which are for several regions, cannot be made")
	errEvents     = errors.New("signatures of the events in a body cannot be made")
)

// Parse parses the signature of a request at a time. Everything that AWS requires to be signed must be.
func Parse(r *http.Request, now time.Time) (*Request, error) {
	q := &Request{}
	var err error
	if pairs, coded := presigned(r.URL.RawQuery); coded {
		q.query = true
		err = q.fromQuery(r, pairs)
	} else {
		err = q.fromHeader(r)
	}
	if err == nil {
		err = q.names(r.Header)
	}
	if err == nil {
		err = q.age(now)
	}
	if err == nil {
		err = q.body(r)
	}
	if err != nil {
		return nil, err
	}
	return q, nil
}

// fromHeader parses header Authorization.
func (q *Request) fromHeader(r *http.Request) error {
	text, err := one(r.Header, "Authorization")
	if err != nil {
		return err
	}
	rest, ok := strings.CutPrefix(text, algorithm+" ")
	switch {
	case strings.HasPrefix(text, "AWS4-ECDSA-"):
		return errAsymmetric
	case !ok:
		return errors.New("the request is not signed with " + algorithm)
	}
	values := map[string]string{}
	for part := range strings.SplitSeq(rest, ",") {
		name, value, ok := strings.Cut(strings.TrimSpace(part), "=")
		if _, twice := values[name]; !ok || twice || len(values) == 3 {
			return errors.New("header Authorization is malformed")
		}
		values[name] = value
	}
	if _, ok := values["Signature"]; !ok || len(values) != 3 {
		return errors.New("header Authorization is malformed")
	}
	q.signed = strings.Split(values["SignedHeaders"], ";")
	at := time.Time{}
	if q.stamp = r.Header.Get("X-Amz-Date"); q.stamp != "" {
		if _, err = one(r.Header, "X-Amz-Date"); err == nil {
			at, err = time.Parse(layout, q.stamp)
		}
	} else if text, err = one(r.Header, "Date"); err == nil {
		if at, err = http.ParseTime(text); err != nil {
			at, err = time.Parse(layout, text)
		}
		q.stamp = at.UTC().Format(layout)
	}
	if err != nil {
		return errors.New("the request has no date that can be signed: send X-Amz-Date")
	}
	q.time = at
	return q.scope(values["Credential"])
}

// fromQuery parses a signature in the query.
func (q *Request) fromQuery(r *http.Request, pairs map[string]string) (err error) {
	if _, both := r.Header["Authorization"]; both {
		return errors.New("the request has header Authorization besides a signature in the query")
	}
	switch a := pairs["X-Amz-Algorithm"]; {
	case strings.HasPrefix(a, "AWS4-ECDSA-"):
		return errAsymmetric
	case a != algorithm:
		return errors.New("the request is not signed with " + algorithm)
	}
	seconds, err := strconv.ParseUint(pairs["X-Amz-Expires"], 10, 31)
	if q.expires = time.Duration(seconds) * time.Second; err != nil || seconds == 0 || q.expires > longest {
		return errors.New("X-Amz-Expires is not from 1 to 604800 seconds")
	}
	q.signed = strings.Split(pairs["X-Amz-SignedHeaders"], ";")
	q.stamp = pairs["X-Amz-Date"]
	if q.time, err = time.Parse(layout, q.stamp); err != nil {
		return errors.New("the request has no date that can be signed: send X-Amz-Date")
	}
	return q.scope(pairs["X-Amz-Credential"])
}

// scope parses ID/DATE/REGION/SERVICE/aws4_request.
func (q *Request) scope(text string) error {
	parts := strings.Split(text, "/")
	if len(parts) != 5 || parts[4] != ending || parts[1] != q.stamp[:min(8, len(q.stamp))] {
		return errors.New("the scope of the signature is malformed, or has another date")
	}
	for _, p := range []string{parts[0], parts[2], parts[3]} {
		if p == "" || len(p) > maxName || strings.ContainsFunc(p, func(r rune) bool { return r <= ' ' || r >= 0x7f }) {
			return errors.New("the scope of the signature is malformed")
		}
	}
	q.ID, q.Region, q.Service = parts[0], parts[2], parts[3]
	return nil
}

// names checks which headers are signed.
func (q *Request) names(h http.Header) error {
	once := len(slices.Compact(slices.Clone(q.signed))) == len(q.signed)
	if len(q.signed) > maxSigned || !slices.IsSorted(q.signed) || !once {
		return errors.New("the names of the signed headers are not in order, or too many")
	}
	for _, name := range q.signed {
		switch canonical := textproto.CanonicalMIMEHeaderKey(name); {
		case name == "" || len(name) > maxName || strings.ToLower(canonical) != name || canonical == name:
			return errors.New("the names of the signed headers are malformed")
		}
	}
	q.signed = slices.DeleteFunc(q.signed, perConnection)
	if !slices.Contains(q.signed, "host") {
		return errors.New("the host is not signed")
	}
	for name := range h {
		low := strings.ToLower(name)
		if strings.HasPrefix(low, "x-amz-") && low != "x-amz-security-token" && !slices.Contains(q.signed, low) {
			return fmt.Errorf("header %.64s is not signed", low)
		}
	}
	return nil
}

// perConnection reports whether a header is for one connection, so that it is not signed again.
func perConnection(name string) bool {
	return slices.Contains([]string{"authorization", "connection", "expect", "keep-alive", "proxy-connection", "te",
		"trailer", "transfer-encoding", "upgrade"}, name)
}

// age checks the time of the signature.
func (q *Request) age(now time.Time) error {
	switch oldest := now.Add(-skew); {
	case q.time.After(now.Add(skew)), !q.query && q.time.Before(oldest):
		return errors.New("the date of the request differs from the gate's clock by more than 15 minutes")
	case q.query && !now.Before(q.time.Add(q.expires)):
		return errors.New("the signature in the query has expired")
	}
	return nil
}

// body finds out what is signed of the body.
func (q *Request) body(r *http.Request) (err error) {
	if _, ok := r.Header["X-Amz-Content-Sha256"]; ok {
		if q.payload, err = one(r.Header, "X-Amz-Content-Sha256"); err != nil {
			return err
		}
	} else if q.query {
		pairs, _ := presigned(r.URL.RawQuery)
		if q.payload = pairs["X-Amz-Content-Sha256"]; q.payload == "" && q.s3() {
			q.payload = unsigned
		}
	}
	switch p := q.payload; {
	case p == "", p == unsigned, p == unsignedTrailer, isHex(p):
	case (p == streaming || p == streamingTrailer) && !q.query && r.Body != nil:
	case strings.HasPrefix(p, "STREAMING-AWS4-ECDSA-"):
		return errAsymmetric
	case p == "STREAMING-AWS4-HMAC-SHA256-EVENTS":
		return errEvents
	default:
		return errors.New("X-Amz-Content-Sha256 is invalid")
	}
	return nil
}

// Hashes reports whether the hash of the body is signed, so that Sign needs it.
func (q *Request) Hashes() bool { return q.payload == "" }

// s3 reports whether paths of the service are signed as they are.
func (q *Request) s3() bool {
	return slices.Contains([]string{"s3", "s3-object-lambda", "s3-outposts", "s3express"}, q.Service)
}

// one returns the value of a header that the request has once.
func one(h http.Header, name string) (string, error) {
	if len(h[name]) != 1 {
		return "", fmt.Errorf("the request must have one header %s", name)
	}
	return h[name][0], nil
}

// parameters are those of a signature in a query.
var parameters = [...]string{"X-Amz-Algorithm", "X-Amz-Content-Sha256", "X-Amz-Credential", "X-Amz-Date",
	"X-Amz-Expires", tokenName, "X-Amz-Signature", "X-Amz-SignedHeaders"}

// presigned returns the parameters of a query for signatures, and whether it has a signature. One that is there twice,
// that has other letters in upper case, as some stores read it, or that cannot be decoded, is invalid text.
func presigned(raw string) (pairs map[string]string, has bool) {
	pairs = map[string]string{}
	for pair := range strings.SplitSeq(raw, "&") {
		k, v, _ := strings.Cut(pair, "=")
		key, err := url.QueryUnescape(k)
		value, verr := url.QueryUnescape(v)
		at := slices.IndexFunc(parameters[:], func(name string) bool { return strings.EqualFold(key, name) })
		if err != nil || at < 0 {
			continue
		}
		name := parameters[at]
		if _, twice := pairs[name]; twice || verr != nil || key != name {
			value = "\x00"
		}
		pairs[name] = value
	}
	_, credential := pairs["X-Amz-Credential"]
	_, signature := pairs["X-Amz-Signature"]
	return pairs, credential || signature
}

// isHex reports whether s is a SHA-256 in lower case.
func isHex(s string) bool { return len(s) == 64 && strings.Trim(s, "0123456789abcdef") == "" }
