// Package sigv4test verifies the signatures of requests for AWS as a server does. It shares no code with package sigv4,
// so that tests compare both, and the clients that sign.
package sigv4test

import (
	"bufio"
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"path"
	"sort"
	"strings"
)

// Key is an access key.
type Key struct{ ID, Secret, Token string }

// Verify returns an error if r, which a server received, is not signed with k, or if body is not what was signed. It
// returns the body without chunks.
func Verify(r *http.Request, body []byte, k Key) ([]byte, error) {
	head := r.Header.Clone()
	query := r.URL.Query()
	auth := map[string]string{}
	presigned := query.Has("X-Amz-Signature")
	if presigned {
		for _, name := range []string{"Credential", "SignedHeaders", "Signature"} {
			auth[name] = query.Get("X-Amz-" + name)
		}
		query.Del("X-Amz-Signature")
		head.Set("X-Amz-Date", query.Get("X-Amz-Date"))
		if got := query.Get("X-Amz-Security-Token"); got != k.Token {
			return nil, fmt.Errorf("token %q", got)
		}
	} else {
		text, _ := strings.CutPrefix(head.Get("Authorization"), "AWS4-HMAC-SHA256 ")
		for _, part := range strings.Split(text, ",") {
			name, value, _ := strings.Cut(strings.TrimSpace(part), "=")
			auth[name] = value
		}
		if got := head.Get("X-Amz-Security-Token"); got != k.Token {
			return nil, fmt.Errorf("token %q", got)
		}
	}
	date := head.Get("X-Amz-Date")
	id, scope, _ := strings.Cut(auth["Credential"], "/")
	parts := strings.Split(scope, "/")
	if id != k.ID || len(parts) != 4 || parts[3] != "aws4_request" || !strings.HasPrefix(date, parts[0]) {
		return nil, fmt.Errorf("credential %q", auth["Credential"])
	}
	payload := head.Get("X-Amz-Content-Sha256")
	sum := sha256.Sum256(body)
	hash := hex.EncodeToString(sum[:])
	switch {
	case payload == "" && presigned && parts[2] == "s3":
		payload = "UNSIGNED-PAYLOAD"
	case payload == "":
		payload = hash
	case len(payload) == 64 && payload != hash:
		return nil, errors.New("the body has another hash")
	}
	canonical := []string{r.Method, canonicalPath(r, parts[2]), canonicalQuery(query)}
	names := strings.Split(auth["SignedHeaders"], ";")
	for _, name := range names {
		value := strings.Join(head.Values(name), ",")
		switch name {
		case "host":
			value = r.Host
		case "content-length":
			value = fmt.Sprint(r.ContentLength)
		}
		canonical = append(canonical, name+":"+strings.Join(strings.Fields(value), " "))
	}
	for name := range head {
		name = strings.ToLower(name)
		if strings.HasPrefix(name, "x-amz-") && !presigned && !strings.Contains(";"+auth["SignedHeaders"]+";", ";"+name+";") {
			return nil, errors.New("not signed: " + name)
		}
	}
	canonical = append(canonical, "", auth["SignedHeaders"], payload)
	key := []byte("AWS4" + k.Secret)
	for _, part := range parts {
		key = mac(key, part)
	}
	whole := sha256.Sum256([]byte(strings.Join(canonical, "\n")))
	want := hex.EncodeToString(mac(key, "AWS4-HMAC-SHA256\n"+date+"\n"+scope+"\n"+hex.EncodeToString(whole[:])))
	if auth["Signature"] != want {
		return nil, fmt.Errorf("signature %s, and not %s, of\n%s", auth["Signature"], want, strings.Join(canonical, "\n"))
	}
	if strings.HasPrefix(payload, "STREAMING-") {
		return unchunk(body, payload, key, date+"\n"+scope+"\n", want)
	}
	return body, nil
}

// unchunk returns the content of chunks, whose signatures it verifies unless they have none.
func unchunk(body []byte, payload string, key []byte, scope, last string) (content []byte, err error) {
	r := bufio.NewReader(bytes.NewReader(body))
	signed := strings.HasPrefix(payload, "STREAMING-AWS4")
	const none = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
	for {
		line, err := r.ReadString('\n')
		if err != nil {
			return nil, err
		}
		var size int
		var signature string
		_, err = fmt.Sscanf(strings.ReplaceAll(line, ";chunk-signature=", " "), "%x %s", &size, &signature)
		if err != nil && signed {
			return nil, fmt.Errorf("chunk %q", line)
		}
		data := make([]byte, size)
		if _, err := io.ReadFull(r, data); err != nil {
			return nil, err
		}
		sum := sha256.Sum256(data)
		if signed {
			what := none + "\n" + hex.EncodeToString(sum[:])
			last = hex.EncodeToString(mac(key, "AWS4-HMAC-SHA256-PAYLOAD\n"+scope+last+"\n"+what))
			if last != signature {
				return nil, fmt.Errorf("the signature of a chunk of %d bytes", size)
			}
		}
		content = append(content, data...)
		if size > 0 {
			if _, err := r.ReadString('\n'); err != nil {
				return nil, err
			}
			continue
		}
		rest, err := io.ReadAll(r)
		trailers, after, found := strings.Cut(string(rest), "x-amz-trailer-signature:")
		if strings.HasSuffix(payload, "-TRAILER") && signed {
			sum := sha256.Sum256([]byte(strings.ReplaceAll(trailers, "\r\n", "\n")))
			want := hex.EncodeToString(mac(key, "AWS4-HMAC-SHA256-TRAILER\n"+scope+last+"\n"+hex.EncodeToString(sum[:])))
			if !found || after != want+"\r\n\r\n" {
				return nil, fmt.Errorf("trailer signature %q, and not %s", after, want)
			}
		}
		return content, err
	}
}

// canonicalPath is the target as it was sent. S3 reads it as the name of an object, others escape it again.
func canonicalPath(r *http.Request, service string) string {
	target, _, _ := strings.Cut(r.RequestURI, "?")
	if service == "s3" {
		return strings.ReplaceAll(escaped(r.URL.Path), "%2F", "/")
	}
	clean := path.Clean(target)
	if strings.HasSuffix(target, "/") && clean != "/" {
		clean += "/"
	}
	return strings.ReplaceAll(escaped(clean), "%2F", "/")
}

func canonicalQuery(v url.Values) string {
	var all []string
	for name, values := range v {
		for _, value := range values {
			all = append(all, escaped(name)+"\x00"+escaped(value)) // by names first
		}
	}
	sort.Strings(all)
	return strings.ReplaceAll(strings.Join(all, "&"), "\x00", "=")
}

// escaped returns s in percent-encoding, with only the unreserved characters as they are.
func escaped(s string) string {
	return strings.NewReplacer("+", "%20", "%7E", "~").Replace(url.QueryEscape(s))
}

func mac(key []byte, text string) []byte {
	h := hmac.New(sha256.New, key)
	_, _ = io.WriteString(h, text)
	return h.Sum(nil)
}
