package grant

import (
	"encoding/base64"
	"encoding/json"
	"hash/crc32"
	"math/big"
	"regexp"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/coppice-dev/coppice/internal/fault"
)

var key = []byte("0123456789abcdef0123456789abcdef")

// examples has invented values of each kind, with the placeholder for sandbox box, grant g, epoch 0. The placeholders
// must not change: sandboxes hold them.
var examples = []struct {
	value string
	kind  Kind
	want  string
}{
	{"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", GitHub,
		"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"},
	{"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", GitHub,
		"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"},
	{"github_pat_11ABCDEFG0abcdefghijkl_" + strings.Repeat("a1B2c", 11) + "wxyz", GitHub,
		"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"},
	{"glpat-ts8y8Mk2gxi-xvXVsxfN", GitLab,
		"glpat-YRuNsIVI6YMaNWLSVIyX"},
	{"glpat-" + strings.Repeat("Ab3-", 9) + ".01.101abcdef", GitLab,
		"glpat-BXcBpTpYprI2QDpmsIMbCgYMAKtH1fyaVlbU.01.1017awmld"},
	{"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", NPM,
		"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"},
	{"pypi-AgEIcHlwaS5vcmc" + strings.Repeat("Cj3_", 38), PyPI,
		"pypi-AgEIcHlwaS5vcmcKhPin-PThYefrFybRJy2DroJ8xxneA7TjKDTzAeGWFsKfc9cd7fuwWFHPOQLYsyelhYAFVzfO7XdSyna" +
			"FjnO7WwFWp8-YghQjpCLwqFDMowOnGim7G_-mMs2t0CDVm9lYP_F8KHi9YiVP9jFt7lT6jiT"},
	{"sk-ant-api03-" + strings.Repeat("x-Y", 31) + "AA", Anthropic,
		"sk-ant-api03-B0TOegxGS247b3kbyEr83s17p2rMfPW238ud5h5U3O8BHcb-5yuWE74clBY7zohO_1JtUb-NlpCpEvaiXqncBGJ" +
			"sMjonBAA"},
	{"sk-ant-oat01-" + strings.Repeat("x_Y", 31) + "x", Anthropic,
		"sk-ant-oat01-BdxGJSL0rq1qGLduGEbc_259qe9AngCNKfXBTw6x0qtV0ubynevg1vXGdpUBJfjSTpVjEUyDxj2pG2f_SOnTyGz" +
			"GKaclFi"},
	{"sk-proj-" + strings.Repeat("ab", 37) + "T3BlbkFJ" + strings.Repeat("Cd", 37), OpenAI,
		"sk-proj-oaG6VxkJolaLYsBMp0Xp6AjJ2hn9_qpHu036fmqXLldB8xvMULERaXe2zQ47FM7mOgJM3igQnsT3BlbkFJxFZHAK0CyQ" +
			"qmae9B3J-k7iUcnRR4L44vKhnKv-LiNqfyCOf_2YU0dCJpUpLJssuYosl6c_AwH8"},
	{"sk-" + strings.Repeat("a1B", 16), OpenAI,
		"sk-S90xhSAw4QBpTbEJb1aaihc3kC3Mj2eq02L5hIADSmYMd0g2"},
	{"AIzaSyDaGmWKa4JsXZ-HjGw7ISLn_3namBGewQe", Google,
		"AIza-duR13xkpLgSYkYrHX960rfa2v7K3LT6EKH"},
	{"ya29.a0AfH6SMBx1234567890abcdefghij-_", Google,
		"ya29.-kJRs3Zxw5ON1zZMd8dF4s6wluczCbmK"},
	{"hf_abcdefghijklmnopqrstuvwxyzABCDEFGH", HuggingFace,
		"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"},
	{"xoxb-123456789012-1234567890123-AbCdEfGhIjKlMnOpQrStUvWx", Slack,
		"xoxb-404269578563-0767186213924-w5BTQfggaHoeCqfNTVUIrfVw"},
	{"xapp-1-A012BCDEF-3456789012345-abcdef0123456789", Slack,
		"xapp-7GcjZOpBKJyU4mjpOVhrOq08g5a5nNrRSb5iDD6PaT"},
	{"AKIAIOSFODNN7EXAMPLE:wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY", AWS,
		"AKIARG3MPYIE36NQIL2Y:MiYJy9Ox/eZV9PHRa3YkcgOJL3SEHEKrvcpJ7nmo"},
	{"ASIAIOSFODNN7EXAMPLE:wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY:FwoGZXIvYXdzEJr+Example/Token==", AWS,
		"ASIAEL2UUFJGY3GST7RC:h/BUXeA9o5W5fDco9P0uWka3uk1qtWypGCDyAcbA:yAG/WfPI+G+c8Oi60mEV00nTRUAec=="},
	{"eyJhbGciOiJIUzI1NiIsInR5cCI6IkpXVCJ9.eyJzdWIiOiIxMjM0NTY3ODkwIiwibmFtZSI6IkpvaG4iLCJpYXQiOjE1MTYyMzkwMjJ9." +
		"SflKxwRJSMeKKF2QT4fwpMeJf36POk6yJV_adQssw5c", JWT,
		"eyJhbGciOiJSUzI1NiIgICAgICAgICAgICB9.eyJleHAiOjQxMDI0NDQ4MDAsImp0aSI6Ik5HV2FqSHZNc3V2WU5CQkhzRm05aWR" +
			"ESCJ9.jzuGoewynI1ITmIZOGQ6hrAoPR5h_uzJGRo6nY1LVF4"},
	{"3f2504e0-4f89-41d3-9a0c-0305e82c3301", UUID,
		"a60b3590-7fc3-44b0-b68b-a0406a6bb88a"},
	{"0123456789abcdef0123456789abcdef", HexKey,
		"8a2f65132bdaa05d2257c2e2330591df"},
	{"0123456789ABCDEF0123456789ABCDEF", HexKey,
		"9A802D21897B09F9A606FD90CE3F5F41"},
	{base64.StdEncoding.EncodeToString([]byte("deploy:correct horse battery")), BasicPair,
		"eDpKUjQ1aVpOS0F1OXJkSXR2UmFNMm50MFNTeg=="},
	{"lin_api_qwertyuiopasdfghjklzxcvb", Opaque,
		"_p0lGI1HvAlOp015xxwh0vOQ0nGJgKRG"},
	{"uM4XD2kUW5zN8yqJ0pR7tLs3", Opaque,
		"S0l3b4Lx2Dt1kyX0whPdsAsY"},
	{"p@ss word with: several % characters", Opaque,
		"AcookhcnSO17B2mozhkIhbTa5fIQzMTsChgJ"},
}

func TestKindOf_KnowsEachKind(t *testing.T) {
	t.Parallel()
	seen := map[Kind]bool{}
	for _, e := range examples {
		s := KindOf(e.value)
		seen[e.kind] = true
		if s.Kind != e.kind || s.Length() != len(e.value) {
			t.Errorf("%s: %s", e.value, s)
		}
	}
	for _, k := range Kinds() {
		if !seen[k] && k != SSH { // which has no placeholder
			t.Errorf("no example of %s", k)
		}
	}
	if s := KindOf("glpat-" + strings.Repeat("Ab3-", 9) + ".01.991abcdef"); s.Kind != Opaque {
		t.Errorf("a token of GitLab with another length is %s", s)
	}
	for _, v := range []string{"", " ", "\t\n", " abc", "abc\n", "a\x00b", "a\rb", strings.Repeat("x", MaxValue+1)} {
		if s := KindOf(v); !s.Equal(Shape{}) {
			t.Errorf("%.20q: %s", v, s)
		}
	}
}

// constant are the texts that a Shape may have from a value.
var constant = regexp.MustCompile(`^(gh[pousr]_|github_pat_|_|gl[a-z]+-|\.01\.|npm_|` +
	`pypi-AgE(IcHlwaS5vcmc|NdGVzdC5weXBpLm9yZw)|sk-ant-[a-z]+\d\d-|AA|sk-|sk-[a-z]+-|T3BlbkFJ|AIza|GOCSPX-|ya29\.|1//0|` +
	`hf_|api_org_|xox[a-z][-.]|xapp-|-|AKIA|ASIA|:|={1,2}|\.|[1-8])$`)

func TestPlaceholder_HasShapeOfTheValue(t *testing.T) {
	t.Parallel()
	for _, e := range examples {
		s := KindOf(e.value)
		got, err := Placeholder(key, "box", "g", 0, s)
		if err != nil {
			t.Errorf("%s: %v", e.value, err)
			continue
		}
		if got != e.want {
			t.Errorf("%s: %s, want %s", e.value, got, e.want)
		}
		if len(got) != len(e.value) || got == e.value || !KindOf(got).Equal(s) || !strings.HasPrefix(got, s.Prefix()) {
			t.Errorf("%s: %s, of shape %s", e.value, got, KindOf(got))
		}
		at := 0
		for _, p := range s.Parts {
			was, is := e.value[at:at+p.Length], got[at:at+p.Length]
			if p.Alphabet == Literal && (was != is || !constant.MatchString(was)) {
				t.Errorf("%s: the shape has %q of it", e.value, p.Text)
			}
			if p.Alphabet != Literal && p.Alphabet.bits(p.Length) > 60 && was == is {
				t.Errorf("%s: %s of it is in the placeholder", e.value, was)
			}
			at += p.Length
		}
		if text, err := json.Marshal(s); err != nil {
			t.Error(err)
		} else if back := (Shape{}); json.Unmarshal(text, &back) != nil || !back.Equal(s) {
			t.Errorf("%s: stored as %s", s, text)
		}
	}
}

// number decodes base62 as GitHub writes it.
func number(s string) uint32 {
	n := new(big.Int)
	for _, c := range s {
		n.Add(n.Mul(n, big.NewInt(62)), big.NewInt(int64(strings.IndexRune(alnum, c))))
	}
	return uint32(n.Uint64())
}

func TestPlaceholder_HasValidChecksum(t *testing.T) {
	t.Parallel()
	// Published examples, which do not work: github.com/secretlint/secretlint/issues/200, and base62-token.js.
	if number("0LsakP") != crc32.ChecksumIEEE([]byte("qkJaB6MffYVzZXWqmcoF49yrUxP3wf")) {
		t.Error("the example of npm is not valid by this checksum")
	}
	if number("0mLq17") != crc32.ChecksumIEEE([]byte("zQWBuTSOoRi4A9spHcVY5ncnsDkxkJ")) {
		t.Error("the example of GitHub is not valid by this checksum")
	}
	rapid.Check(t, func(t *rapid.T) {
		e := rapid.SampledFrom(examples[:6]).Draw(t, "example")
		got, err := Placeholder(key, "box", rapid.StringMatching(`[a-z]{1,9}`).Draw(t, "grant"), 1, KindOf(e.value))
		if err != nil {
			t.Fatal(err)
		}
		switch body, ok := strings.CutPrefix(got, KindOf(got).Prefix()); {
		case !ok:
			t.Fatalf("%s: another prefix", got)
		case e.kind == GitLab && strings.Contains(got, "."):
			sum, head := got[len(got)-7:], got[:len(got)-7]
			if want := base36(uint64(crc32.ChecksumIEEE([]byte(head))), 7); sum != want || !strings.HasSuffix(head, ".01.10") {
				t.Fatalf("%s: checksum %s, want %s", got, sum, want)
			}
			if _, err := base64.RawURLEncoding.DecodeString(body[:strings.IndexByte(body, '.')]); err != nil {
				t.Fatalf("%s: %v", got, err)
			}
		case e.kind == GitLab:
		case number(body[len(body)-6:]) != crc32.ChecksumIEEE([]byte(body[:len(body)-6])):
			t.Fatalf("%s: invalid checksum", got)
		}
	})
}

func TestPlaceholder_OfJWTIsDecodable(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		members := rapid.StringMatching(`[a-z ]{0,80}`)
		code := base64.RawURLEncoding.EncodeToString
		value := code([]byte(`{"alg":"ES256","x":"`+members.Draw(t, "header")+`"}`)) + "." +
			code([]byte(`{"sub":"someone","x":"`+members.Draw(t, "claims")+`"}`)) + "." +
			code(rapid.SliceOfN(rapid.Byte(), 12, 90).Draw(t, "signature"))
		got, err := Placeholder(key, "box", "g", 0, KindOf(value))
		if err != nil {
			t.Fatal(err)
		}
		parts, were := strings.Split(got, "."), strings.Split(value, ".")
		var header struct{ Alg string }
		var claims struct{ Exp int64 }
		for i, to := range []any{&header, &claims, nil} {
			b, err := base64.RawURLEncoding.Strict().DecodeString(parts[i])
			if len(parts[i]) != len(were[i]) || err != nil || to != nil && json.Unmarshal(b, to) != nil {
				t.Fatalf("part %d of %s, %q: %v", i, got, b, err)
			}
		}
		if header.Alg == "" || claims.Exp < 4_000_000_000 {
			t.Fatalf("%s: %v, %v", got, header, claims)
		}
	})
}

func TestPlaceholder_DependsOnAllNames(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		type of struct {
			sandbox, grant string
			epoch          uint32
		}
		draw := func(name string) of {
			word := rapid.StringMatching(`[ab]{1,3}`)
			return of{word.Draw(t, name+" sandbox"), word.Draw(t, name+" grant"), rapid.Uint32Range(0, 3).Draw(t, name)}
		}
		a, b := draw("a"), draw("b")
		s := KindOf(rapid.SampledFrom(examples).Draw(t, "example").value)
		one, err := Placeholder(key, a.sandbox, a.grant, a.epoch, s)
		two, err2 := Placeholder(key, b.sandbox, b.grant, b.epoch, s)
		if err != nil || err2 != nil || (one == two) != (a == b) {
			t.Fatalf("%+v: %s, %+v: %s, %v, %v", a, one, b, two, err, err2)
		}
		other, err := Placeholder([]byte("another key, of 32 characters..."), a.sandbox, a.grant, a.epoch, s)
		if err != nil || other == one {
			t.Fatalf("another key: %s, %v", other, err)
		}
	})
}

func TestPlaceholder_RefusesShortSecrets(t *testing.T) {
	t.Parallel()
	for _, v := range []string{"", "a", "hunter2hunter2", "abcdef0123456789", "AKIAIOSFODNN7EXAMPLE", "ghp_short"} {
		if p, err := Placeholder(key, "box", "g", 0, KindOf(v)); !fault.Is(err, fault.Invalid) || fault.HintOf(err) == "" {
			t.Errorf("%q: %s, %v", v, p, err)
		}
	}
	s := KindOf(examples[0].value)
	for _, e := range []error{
		func() error { _, err := Placeholder(nil, "box", "g", 0, s); return err }(),
		func() error { _, err := Placeholder(key, "", "g", 0, s); return err }(),
		func() error {
			_, err := Placeholder(key, "box", "g", 0, Shape{Kind: HexKey, Parts: []Part{{Alphabet: Alnum, Length: 40}}})
			return err
		}(),
	} {
		if !fault.Is(e, fault.Internal) {
			t.Errorf("%v, want an internal error", e)
		}
	}
}

func FuzzKindOf(f *testing.F) {
	for _, e := range examples {
		f.Add(e.value)
	}
	f.Fuzz(func(t *testing.T, value string) {
		s := KindOf(value)
		if s.Equal(Shape{}) {
			return
		}
		if s.Length() != len(value) {
			t.Fatalf("%q: %s has %d bytes", value, s, s.Length())
		}
		for _, p := range s.Parts {
			if p.Alphabet == Literal && !constant.MatchString(p.Text) {
				t.Fatalf("%q: %s has a text of it", value, s)
			}
		}
		p, err := Placeholder(key, "box", "g", 0, s)
		if err != nil && !fault.Is(err, fault.Invalid) || err == nil && (p == value || len(p) != len(value)) {
			t.Fatalf("%q: %q, %v", value, p, err)
		}
	})
}
