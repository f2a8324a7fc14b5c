package sigv4

import (
	"bytes"
	"cmp"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
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

// Credentials are an access key. They share the memory of what they were parsed from.
type Credentials struct {
	id            string
	secret, token []byte // no token: nil
}

// ParseCredentials parses ID:SECRET or ID:SECRET:TOKEN.
func ParseCredentials(value []byte) (c Credentials, err error) {
	parts := bytes.SplitN(value, []byte(":"), 3)
	if len(parts) < 2 || len(parts[0]) == 0 || len(parts[1]) == 0 || bytes.ContainsAny(parts[0], "/, ") {
		return c, errors.New("its value is not an access key, ID:SECRET or ID:SECRET:TOKEN")
	}
	c.id, c.secret = string(parts[0]), parts[1]
	if len(parts) == 3 && len(parts[2]) > 0 {
		c.token = parts[2]
	}
	return c, nil
}

const tokenName = "X-Amz-Security-Token"

// Sign signs r, from which q was parsed, with c. hash is the SHA-256 of the body if q.Hashes. A signature in the query
// expires with until, unless that is zero, and a quarter of an hour from now at the latest: it is needed for r alone.
// If chunks of the body are signed, Sign replaces r.Body, which then calls hold before it holds bytes of a chunk. If
// Sign fails, r must not be sent.
func (q *Request) Sign(
	r *http.Request, c Credentials, hash [sha256.Size]byte, now, until time.Time, hold func(int64) error,
) error {
	payload := cmp.Or(q.payload, hex.EncodeToString(hash[:]))
	if q.query {
		if err := q.inQuery(r, c, now, until); err != nil {
			return err
		}
	} else {
		q.token(r.Header, c)
	}
	head, err := q.head(r, payload)
	if err != nil {
		return err
	}
	k := q.key(c)
	sum := sha256.Sum256([]byte(head))
	signature := k.sign(strings.Join([]string{algorithm, q.stamp, q.within(), hex.EncodeToString(sum[:])}, "\n"))
	if q.query {
		r.URL.RawQuery += "&X-Amz-Signature=" + signature
		clear(k[:])
		return nil
	}
	r.Header["Authorization"] = []string{algorithm + " Credential=" + c.id + "/" + q.within() + ", SignedHeaders=" +
		strings.Join(q.signed, ";") + ", Signature=" + signature}
	if payload == streaming || payload == streamingTrailer {
		r.Body = newChunks(r.Body, q, k, signature, hold) // which wipes the key
		return nil
	}
	clear(k[:])
	return nil
}

// token sets or removes the header with the session token.
func (q *Request) token(h http.Header, c Credentials) {
	h.Del(tokenName)
	low := strings.ToLower(tokenName)
	q.signed = slices.DeleteFunc(slices.Clone(q.signed), func(s string) bool { return s == low })
	if c.token != nil {
		h.Set(tokenName, string(c.token))
		q.signed = append(q.signed, low)
		slices.Sort(q.signed)
	}
}

// inQuery puts the access key into the query, and removes the signature.
func (q *Request) inQuery(r *http.Request, c Credentials, now, until time.Time) error {
	end := q.time.Add(q.expires)
	for _, other := range []time.Time{now.Add(skew), until} {
		if !other.IsZero() && other.Before(end) {
			end = other
		}
	}
	seconds := int64(end.Sub(q.time) / time.Second)
	if seconds < 1 {
		return errors.New("the date of the request is after the end of the grant")
	}
	q.token(r.Header, Credentials{}) // it is in the query
	set := map[string]string{"X-Amz-Credential": c.id + "/" + q.within(), "X-Amz-Expires": strconv.FormatInt(seconds, 10),
		"X-Amz-SignedHeaders": strings.Join(q.signed, ";")}
	var pairs []string
	for pair := range strings.SplitSeq(r.URL.RawQuery, "&") {
		k, _, _ := strings.Cut(pair, "=")
		key, err := url.QueryUnescape(k)
		if value, ok := set[key]; ok && err == nil {
			pair = k + "=" + encode(value, false)
		}
		if err != nil || !strings.EqualFold(key, "X-Amz-Signature") && !strings.EqualFold(key, tokenName) {
			pairs = append(pairs, pair)
		}
	}
	if c.token != nil {
		pairs = append(pairs, tokenName+"="+encode(string(c.token), false))
	}
	r.URL.RawQuery = strings.Join(pairs, "&")
	return nil
}

// within returns the scope.
func (q *Request) within() string {
	return q.stamp[:8] + "/" + q.Region + "/" + q.Service + "/" + ending
}

// head returns the canonical request: what is signed of the head, and of the body.
func (q *Request) head(r *http.Request, payload string) (string, error) {
	path, err := q.path(r.URL.EscapedPath())
	if err != nil {
		return "", err
	}
	query, err := canonicalQuery(r.URL.RawQuery)
	if err != nil {
		return "", err
	}
	text := r.Method + "\n" + path + "\n" + query + "\n"
	for _, name := range q.signed {
		value := ""
		switch values := r.Header[textproto.CanonicalMIMEHeaderKey(name)]; {
		case name == "host":
			value = r.Host
		case name == "content-length":
			value = strconv.FormatInt(r.ContentLength, 10)
		case len(values) == 0:
			return "", fmt.Errorf("header %.64s is signed, and not in the request, or not passed on", name)
		default:
			for i, v := range values {
				if i > 0 {
					value += ","
				}
				value += strings.Join(strings.FieldsFunc(v, func(c rune) bool { return c == ' ' }), " ")
			}
		}
		text += name + ":" + value + "\n"
	}
	return text + "\n" + strings.Join(q.signed, ";") + "\n" + payload, nil
}

// path returns the canonical path. Of most services, it is normalized and escaped twice; of S3, it is the name of an
// object, which is escaped once.
func (q *Request) path(escaped string) (string, error) {
	if q.s3() {
		plain, err := url.PathUnescape(escaped)
		return encode(plain, true), err
	}
	var parts []string
	for part := range strings.SplitSeq(escaped, "/") {
		switch part {
		case "", ".":
		case "..":
			parts = parts[:max(len(parts)-1, 0)]
		default:
			parts = append(parts, encode(part, false))
		}
	}
	path := "/" + strings.Join(parts, "/")
	if len(parts) > 0 && strings.HasSuffix(escaped, "/") {
		path += "/"
	}
	return path, nil
}

// canonicalQuery returns a query in order, and escaped as AWS does.
func canonicalQuery(raw string) (string, error) {
	if raw == "" {
		return "", nil
	}
	type pair struct{ name, value string }
	var pairs []pair
	for text := range strings.SplitSeq(raw, "&") {
		k, v, _ := strings.Cut(text, "=")
		name, err := url.QueryUnescape(k)
		value, verr := url.QueryUnescape(v)
		if err != nil || verr != nil {
			return "", errors.New("the escapes in the query are invalid")
		}
		if text != "" {
			pairs = append(pairs, pair{encode(name, false), encode(value, false)})
		}
	}
	slices.SortFunc(pairs, func(a, b pair) int {
		return cmp.Or(cmp.Compare(a.name, b.name), cmp.Compare(a.value, b.value))
	})
	var all []string
	for _, p := range pairs {
		all = append(all, p.name+"="+p.value)
	}
	return strings.Join(all, "&"), nil
}

// encode escapes all but the unreserved characters (RFC 3986), and slashes unless keep.
func encode(s string, keep bool) string {
	var b strings.Builder
	for i := range len(s) {
		switch c := s[i]; {
		case '0' <= c && c <= '9', 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', strings.IndexByte("-._~", c) >= 0,
			keep && c == '/':
			b.WriteByte(c)
		default:
			fmt.Fprintf(&b, "%%%02X", c)
		}
	}
	return b.String()
}

// signingKey signs for one day, region and service.
type signingKey [sha256.Size]byte

// key derives the key of q's scope.
func (q *Request) key(c Credentials) signingKey {
	secret := slices.Concat([]byte("AWS4"), c.secret)
	k := mac(secret, q.stamp[:8])
	clear(secret)
	for _, part := range []string{q.Region, q.Service, ending} {
		k = mac(k[:], part)
	}
	return k
}

func mac(key []byte, text string) (k signingKey) {
	h := hmac.New(sha256.New, key)
	h.Write([]byte(text))
	h.Sum(k[:0])
	return k
}

// sign returns the signature of text.
func (k *signingKey) sign(text string) string {
	sum := mac(k[:], text)
	return hex.EncodeToString(sum[:])
}
