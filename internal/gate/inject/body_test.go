package inject

import (
	"encoding/json"
	"io"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/coppice-dev/coppice/internal/grant"
)

// TestIntoBody puts a value into bodies. P is the placeholder; V is the value as it is encoded there.
func TestIntoBody(t *testing.T) {
	t.Parallel()
	for _, x := range []struct{ site, body, want string }{
		{"json:/token", `{"token":"P"}`, `{"token":V}`},
		{"json:/token", " {\"a\": [1, -2.5e3, true, false, null, \"P\"],\r\n\t\"token\" : \"P\" , \"b\":{\"token\":\"P\"} }\n",
			" {\"a\": [1, -2.5e3, true, false, null, \"P\"],\r\n\t\"token\" : V , \"b\":{\"token\":\"P\"} }\n"},
		{"json:/a/1/b~1c", `{"a":["P",{"b/c":"P"}]}`, `{"a":["P",{"b/c":V}]}`},
		{"json:/t~0o", `{"t~o":"P","x":{"d":1,"d":2}}`, `{"t~o":V,"x":{"d":1,"d":2}}`},
		{"json:/token", `{"\u0074oken":"\u0067hp_PLACEHOLDERplaceholder0000000000AAAA"}`, `{"\u0074oken":V}`},
		{"json:/", `{"":"P"}`, `{"":V}`},
		{"json:/token", `{"token":"P "}`, ""}, {"json:/token", `{"token":"xP"}`, ""}, {"json:/token", `{"token":["P"]}`, ""},
		{"json:/token", `{"other":"P"}`, ""}, {"json:/token", `["P"]`, ""}, {"json:/token", `"P"`, ""}, {"json:/token", `{}`, ""},
		{"json:/a/0", `{"a":{"0":"P"}}`, `{"a":{"0":V}}`}, {"json:/a/00", `{"a":["P"]}`, ""}, {"json:/a/-", `{"a":["P"]}`, ""},
		{"json:/Token", `{"token":"P"}`, ""},
		{"form:token", "token=P", "token=V"}, {"form:token", "a=P&token=P&b=%zz", "!"}, {"form:token", "a=P&token=P&b=1+1", "a=P&token=V&b=1+1"},
		{"form:token", "tok%65n=ghp%5FPLACEHOLDERplaceholder0000000000AAAA&", "tok%65n=V&"},
		{"form:token", "token=xP", ""}, {"form:token", "token", ""}, {"form:token", "", ""}, {"form:token", "a=token=P", ""},
		{"form:token", "token=P&token=P", "!"}, {"form:token", "token=P&tok%65n=x", "!"}, {"form:token", "token=%zz", "!"},
		{"form:token", "%zz=1&token=P", "!"}, {"form:token", "token=P;x=1", ""},
		{"form:token", "token=P&_method=DELETE", "!"}, {"form:token", "%5fmethod=x&token=P", "!"},
		// What two programs could read in different ways.
		{"json:/token", `{"token":"P","token":"x"}`, "!"}, {"json:/token", `{"token":"P","t\u006fken":"P"}`, "!"},
		{"json:/a/token", `{"a":{"token":"P"},"a":{"token":"P"}}`, "!"}, {"json:/a/token", `{"a":{"token":"P","token":1}}`, "!"},
		{"json:/token", `{"token":"P"`, "!"}, {"json:/token", `{"token":"P"} x`, "!"}, {"json:/token", `{"token":"P",}`, "!"},
		{"json:/token", `{token:"P"}`, "!"}, {"json:/token", `{'token':"P"}`, "!"}, {"json:/token", "\ufeff" + `{"token":"P"}`, "!"},
		{"json:/token", `{"token":"P","a":01}`, "!"}, {"json:/token", `{"token":"P","a":NaN}`, "!"}, {"json:/token", `{"token":"P","a":1e}`, "!"},
		{"json:/token", `{"token":"P","a":"\x"}`, "!"}, {"json:/token", `{"token":"P","a":"\u12"}`, "!"}, {"json:/token", `{"token":"P","a":"` + "\n" + `"}`, "!"},
		{"json:/token", `{"token":"P","a":"` + "\xff" + `"}`, "!"}, {"json:/token", `{"token":"P" /* */}`, "!"}, {"json:/token", "", "!"},
		{"json:/token", `{"token":"P","a":[}`, "!"}, {"json:/token", `{"token":"P","a":"`, "!"}, {"json:/token", `{"token":"P","a":"\`, "!"},
		{"json:/token", `{"a":` + strings.Repeat("[", 101) + strings.Repeat("]", 101) + `,"token":"P"}`, "!"},
		{"json:/token", `{"a":` + strings.Repeat("[", 99) + strings.Repeat("]", 99) + `,"token":"P"}`, `{"a":` + strings.Repeat("[", 99) + strings.Repeat("]", 99) + `,"token":V}`},
		{"json:/token", strings.Repeat(`{"token":`, 100000), "!"},
	} {
		text := strings.NewReplacer("P\"", placeholder+"\"", "=P", "="+placeholder, "xP", "x"+placeholder, "P ", placeholder+" ")
		v, _ := json.Marshal(value)
		as := strings.ReplaceAll(string(v), `\u0026`, "&")
		if strings.HasPrefix(x.site, "form") {
			as = url.QueryEscape(value)
		}
		want := strings.Replace(text.Replace(x.want), "V", as, 1)
		body := text.Replace(x.body)
		p := grant.Put{Site: site(t, x.site), Placeholders: []string{"another", placeholder}}
		got, found, err := IntoBody([]byte(body), p, []byte(value))
		switch {
		case x.want == "!":
			if err == nil || strings.Contains(err.Error(), value) {
				t.Errorf("%s, %.200s: %.200s, %v", x.site, body, got, err)
			}
		case err != nil || found != (x.want != "") || found && string(got) != want || !found && string(got) != body:
			t.Errorf("%s, %.200s: %.200s, %v, %v; want %.200s", x.site, body, got, found, err, want)
		}
	}
	if _, _, err := IntoBody([]byte(`{"t":""}`), grant.Put{Site: site(t, "json:/t"), Placeholders: []string{""}}, nil); err == nil {
		t.Error("an empty value")
	}
	p := grant.Put{Site: site(t, "json:/t"), Placeholders: []string{"P"}}
	if out, _, err := IntoBody([]byte(`{"t":"P"}`), p, []byte("a\xff")); err == nil {
		t.Errorf("a value that JSON cannot have: %q", out)
	}
}

// TestFits checks which bodies are searched.
func TestFits(t *testing.T) {
	t.Parallel()
	for _, x := range []struct {
		site, kind, coding string
		fits, fails        bool
	}{
		{"json:/a", "application/json", "", true, false}, {"json:/a", "Application/JSON; charset=UTF-8", "", true, false},
		{"json:/a", "application/vnd.x+json", "identity", true, false}, {"json:/a", "text/plain", "", false, false},
		{"json:/a", "application/x-www-form-urlencoded", "", false, false}, {"json:/a", "", "", false, false},
		{"form:a", "application/x-www-form-urlencoded", "", true, false}, {"form:a", "application/json", "", false, false},
		{"json:/a", "application/json", "gzip", false, true}, {"json:/a", "application/json; charset=utf-16", "", false, true},
		{"json:/a", "application/json;;", "", false, true}, {"json:/a", "application/json|text/plain", "", false, true},
		{"json:/a", "text/plain", "gzip", false, false},
	} {
		r := &http.Request{Header: http.Header{}, Body: io.NopCloser(strings.NewReader("x"))}
		for kind := range strings.SplitSeq(x.kind, "|") {
			if kind != "" {
				r.Header.Add("Content-Type", kind)
			}
		}
		if x.coding != "" {
			r.Header.Set("Content-Encoding", x.coding)
		}
		if x.coding == "gzip" && x.fails {
			r.Header = http.Header{"Content-Type": {x.kind}, "Content_encoding": {"gzip"}}
			if _, err := Fits(r, site(t, x.site)); err == nil {
				t.Errorf("%+v with an underscore fits", x)
			}
			r.Header = http.Header{"Content-Type": {x.kind}, "Content-Encoding": {"gzip"}}
		}
		if fits, err := Fits(r, site(t, x.site)); fits != x.fits || err != nil != x.fails {
			t.Errorf("%+v: %v, %v", x, fits, err)
		}
	}
}

// FuzzIntoBody checks that only one string of a document changes, and only into the value.
func FuzzIntoBody(f *testing.F) {
	for _, s := range []string{`{"a":{"b":"P"}}`, `{"a":[{"b":"P"},1e3,"\ud83d\ude00"],"a/b":"P"}`, `[[["P"]]]`, `{"a":{"b":"P","b":1}}`} {
		f.Add(s, "/a/b")
		f.Add(s, "/a/0/b")
	}
	f.Fuzz(func(t *testing.T, body, pointer string) {
		s, err := grant.ParseSite("json:" + pointer)
		if err != nil {
			return
		}
		out, found, err := IntoBody([]byte(body), grant.Put{Site: s, Placeholders: []string{"P"}}, []byte("VALUE"))
		if err != nil {
			return
		}
		if !json.Valid([]byte(body)) || !json.Valid(out) {
			t.Fatalf("%q is not JSON: %q", body, out)
		}
		if back := strings.Replace(string(out), `"VALUE"`, `"P"`, 1); found && !strings.Contains(body, `\u`) &&
			!strings.Contains(body, "VALUE") && back != body {
			t.Fatalf("%q: %q", body, out)
		}
		if !found && string(out) != body {
			t.Fatalf("%q: %q", body, out)
		}
	})
}
