package sigv4

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"testing/iotest"
	"time"
)

const (
	exampleKey = "AKIAIOSFODNN7EXAMPLE:wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"
	zeros      = "0000000000000000000000000000000000000000000000000000000000000000"
	otherID    = "AKIAPLACEHOLDER22222"
)

// exampleDay is the time of the examples in the documentation of S3.
func exampleDay() time.Time { return time.Date(2013, 5, 24, 0, 0, 0, 0, time.UTC) }

// toS3 returns a request for S3 that another key has signed. Headers are NAME: VALUE.
func toS3(t testing.TB, method, target, signed string, headers ...string) *http.Request {
	t.Helper()
	u, err := url.Parse("https://" + target)
	if err != nil {
		t.Fatal(err)
	}
	r := &http.Request{Method: method, URL: u, Host: u.Host, Header: http.Header{}, Body: http.NoBody}
	for _, h := range headers {
		name, value, _ := strings.Cut(h, ": ")
		r.Header.Add(name, value)
	}
	if signed != "" {
		r.Header.Set("X-Amz-Date", "20130524T000000Z")
		r.Header.Set("Authorization", "AWS4-HMAC-SHA256 Credential="+otherID+
			"/20130524/us-east-1/s3/aws4_request,SignedHeaders="+signed+",Signature="+zeros)
	}
	return r
}

// resign signs r with the example key.
func resign(t testing.TB, r *http.Request) {
	t.Helper()
	key, err := ParseCredentials([]byte(exampleKey))
	if err != nil {
		t.Fatal(err)
	}
	q, err := Parse(r, exampleDay())
	if err != nil {
		t.Fatal(err)
	}
	if err := q.Sign(r, key, sha256.Sum256(nil), exampleDay().Add(24*time.Hour), time.Time{}, free); err != nil {
		t.Fatal(err)
	}
}

func free(int64) error { return nil }

const emptyHash = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"

// TestS3_Examples compares with the examples in https://docs.aws.amazon.com/AmazonS3/latest/API/sig-v4-header-based-auth.html
// and sigv4-query-string-auth.html.
func TestS3_Examples(t *testing.T) {
	t.Parallel()
	const hash = "X-Amz-Content-Sha256: "
	for want, r := range map[string]*http.Request{
		"f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41": toS3(t, "GET", "examplebucket.s3.amazonaws.com/test.txt",
			"host;range;x-amz-content-sha256;x-amz-date", "Range: bytes=0-9", hash+emptyHash),
		"98ad721746da40c64f1a55b78f14c238d841ea1380cd77a1b5971af0ece108bd": toS3(t, "PUT", "examplebucket.s3.amazonaws.com/test$file.text",
			"date;host;x-amz-content-sha256;x-amz-date;x-amz-storage-class", "Date: Fri, 24 May 2013 00:00:00 GMT",
			"X-Amz-Storage-Class: REDUCED_REDUNDANCY", hash+"44ce7dd67c959e0d3524ffac1771dfbba87d2b6b4b4e99e42034a8b803f8b072"),
		"fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543": toS3(t, "GET", "examplebucket.s3.amazonaws.com/?lifecycle",
			"host;x-amz-content-sha256;x-amz-date", hash+emptyHash),
		"34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7": toS3(t, "GET", "examplebucket.s3.amazonaws.com/?max-keys=2&prefix=J",
			"host;x-amz-content-sha256;x-amz-date", hash+emptyHash),
		"aeeed9bbccd4d02ee5c0109b86d86835f995330da4c265957d157751f604d404": toS3(t, "GET", "examplebucket.s3.amazonaws.com/test.txt?"+
			"X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Credential="+otherID+"%2F20130524%2Fus-east-1%2Fs3%2Faws4_request&"+
			"X-Amz-Date=20130524T000000Z&X-Amz-Expires=86400&X-Amz-SignedHeaders=host&X-Amz-Signature="+zeros, ""),
	} {
		resign(t, r)
		got := r.Header.Get("Authorization") + r.URL.RawQuery
		if !strings.Contains(got, "ignature="+want) || !strings.Contains(got, "AKIAIOSFODNN7EXAMPLE") {
			t.Errorf("%s %s: %s, want %s", r.Method, r.URL, got, want)
		}
	}
}

// chunked returns the body of n bytes in chunks, signed by someone else.
func chunked(size, n int, trailers ...string) string {
	var b strings.Builder
	for n > 0 {
		fmt.Fprintf(&b, "%x;chunk-signature=%s\r\n%s\r\n", min(n, size), zeros, strings.Repeat("a", min(n, size)))
		n -= size
	}
	b.WriteString("0;chunk-signature=" + zeros + "\r\n")
	for _, line := range trailers {
		b.WriteString(line + "\r\n")
	}
	return b.String() + "\r\n"
}

// toChunks returns the request of the examples of chunks with a body.
func toChunks(t testing.TB, body string, trailer bool) *http.Request {
	t.Helper()
	headers := []string{"Content-Encoding: aws-chunked", "X-Amz-Decoded-Content-Length: 66560",
		"X-Amz-Storage-Class: REDUCED_REDUNDANCY", "X-Amz-Content-Sha256: " + streaming}
	signed := "content-encoding;content-length;host;x-amz-content-sha256;x-amz-date;x-amz-decoded-content-length;x-amz-storage-class"
	if trailer {
		headers[3] = "X-Amz-Content-Sha256: " + streamingTrailer
		headers = append(headers, "X-Amz-Trailer: x-amz-checksum-crc32c")
		signed = "content-encoding;host;x-amz-content-sha256;x-amz-date;x-amz-decoded-content-length;x-amz-storage-class;x-amz-trailer"
	}
	r := toS3(t, "PUT", "s3.amazonaws.com/examplebucket/chunkObject.txt", signed, headers...)
	r.Body, r.ContentLength = io.NopCloser(strings.NewReader(body)), int64(len(body))
	return r
}

// TestS3_ChunkExamples compares with the examples in https://docs.aws.amazon.com/AmazonS3/latest/API/sigv4-streaming.html
// and sigv4-streaming-trailers.html.
func TestS3_ChunkExamples(t *testing.T) {
	t.Parallel()
	for _, x := range []struct {
		trailers []string
		want     []string // of the head, the chunks, and the trailers
	}{
		{nil, []string{"4f232c4386841ef735655705268965c44a0e4690baa4adea153f7db9fa80a0a9",
			"ad80c730a21e5b8d04586a2213dd63b9a0e99e0e2307b0ade35a65485a288648",
			"0055627c9e194cb4542bae2aa5492e3c1575bbb81b612b7d234b86a503ef5497",
			"b6c6ea8a5354eaf15b3cb7646744f4275b71ea724fed81ceb9323e279d449df9"}},
		{[]string{"x-amz-checksum-crc32c:sOO8/Q==", "x-amz-trailer-signature:" + zeros},
			[]string{"106e2a8a18243abcf37539882f36619c00e2dfc72633413f02d3b74544bfeb8e",
				"b474d8862b1487a5145d686f57f013e54db672cee1c953b3010fb58501ef5aa2",
				"1c1344b170168f8e65b41376b44b20fe354e373826ccbbe2c1d40a8cae51e5c7",
				"2ca2aba2005185cf7159c6277faf83795951dd77a3a99e6e65d5c9f85863f992",
				"d81f82fc3505edab99d459891051a732e8730629a2e4a59689829ca17fe2e435"}},
	} {
		body := chunked(64<<10, 65<<10, x.trailers...)
		r := toChunks(t, body, x.trailers != nil)
		r.Body = io.NopCloser(iotest.HalfReader(r.Body))
		resign(t, r)
		if got := r.Header.Get("Authorization"); !strings.HasSuffix(got, x.want[0]) {
			t.Errorf("the head: %s, want %s", got, x.want[0])
		}
		got, err := io.ReadAll(r.Body)
		want := body
		for _, s := range x.want[1:] {
			want = strings.Replace(want, zeros, s, 1)
		}
		if err != nil || string(got) != want {
			t.Errorf("%d bytes, %v; want %d:\n%s", len(got), err, len(want), strings.ReplaceAll(string(got), "a", ""))
		}
		if r.Body.Close() != nil || r.Body.(*chunks).key != (signingKey{}) {
			t.Error("the key is not wiped")
		}
	}
}

// TestChunks_RefuseOthers checks bodies that are not chunks as S3 has them.
func TestChunks_RefuseOthers(t *testing.T) {
	t.Parallel()
	good := chunked(10, 20)
	for name, body := range map[string]string{
		"nothing": "", "no last chunk": good[:len(good)-90], "no last line": strings.TrimSuffix(good, "\r\n"), "more": good + "x",
		"no signature": strings.Replace(good, ";chunk-signature="+zeros, "", 1), "LF": strings.ReplaceAll(good, "\r\n", "\n"),
		"short": strings.Replace(good, "a;", "b;", 1), "long": strings.Replace(good, "a;", "9;", 1),
		"extension": strings.Replace(good, zeros+"\r", zeros+";x=y\r", 1), "sign": "+" + good, "negative": "-" + good,
		"prefix": "0x" + good, "upper": strings.Replace(good, zeros, strings.Repeat("A", 64), 1), "huge": "7fffffff" + good[1:],
		"overflow": "100000000" + good[1:], "line": strings.Repeat("0", 5000) + good, "trailers": chunked(10, 20, "x:y"),
		"NUL": "a\x00" + good[1:],
	} {
		r := toChunks(t, body, false)
		resign(t, r)
		_, err := io.ReadAll(r.Body)
		if bad := (*ChunkError)(nil); !errors.As(err, &bad) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for name, trailers := range map[string][]string{
		"none": nil, "no signature": {"x:y"}, "only a signature": {"x-amz-trailer-signature:" + zeros},
		"a bad signature": {"x:y", "x-amz-trailer-signature:0"}, "no colon": {"x", "x-amz-trailer-signature:" + zeros},
		"long":  {"x:" + strings.Repeat("y", 5000), "x-amz-trailer-signature:" + zeros},
		"many":  append(strings.Split(strings.Repeat("x:y ", 3000), " ")[:2999], "x-amz-trailer-signature:"+zeros),
		"after": {"x:y", "x-amz-trailer-signature:" + zeros, "z:y"},
	} {
		r := toChunks(t, chunked(10, 20, trailers...), true)
		resign(t, r)
		_, err := io.ReadAll(r.Body)
		if bad := (*ChunkError)(nil); !errors.As(err, &bad) {
			t.Errorf("trailers, %s: %v", name, err)
		}
	}
}

// TestChunks_ReserveWhatTheyHold checks that a chunk is not held without a reservation, and that a closed body is not
// signed.
func TestChunks_ReserveWhatTheyHold(t *testing.T) {
	t.Parallel()
	r := toChunks(t, chunked(1000, 5000), false)
	q, err := Parse(r, exampleDay())
	if err != nil {
		t.Fatal(err)
	}
	key, _ := ParseCredentials([]byte(exampleKey))
	held, full := int64(0), errors.New("full")
	err = q.Sign(r, key, sha256.Sum256(nil), exampleDay(), time.Time{}, func(n int64) error { held += n; return nil })
	if err != nil {
		t.Fatal(err)
	}
	if n, err := io.Copy(io.Discard, r.Body); err != nil || n != r.ContentLength || held < 1000 || held > 1200 {
		t.Errorf("%d of %d bytes, %d held, %v", n, r.ContentLength, held, err)
	}
	r = toChunks(t, chunked(1000, 5000), false)
	if err := q.Sign(r, key, sha256.Sum256(nil), exampleDay(), time.Time{}, func(int64) error { return full }); err != nil {
		t.Fatal(err)
	}
	if n, err := io.Copy(io.Discard, r.Body); !errors.Is(err, full) || n > 0 {
		t.Errorf("%d bytes, %v", n, err)
	}
	r = toChunks(t, chunked(1000, 5000), false)
	resign(t, r)
	if _, err := r.Body.Read(make([]byte, 10)); err != nil {
		t.Error(err)
	}
	r.Body.Close()
	if b, err := io.ReadAll(r.Body); err == nil || strings.Contains(string(b), "chunk-signature=") {
		t.Errorf("%d bytes, %v", len(b), err)
	}
}
