package grant

import (
	"encoding/base64"
	"encoding/json"
	"regexp"
	"slices"
	"strings"
	"sync"

	"github.com/coppice-dev/coppice/internal/fault"
)

// Kind is what a secret is, by its shape.
type Kind string

// The kinds.
const (
	GitHub      Kind = "github"
	GitLab      Kind = "gitlab"
	NPM         Kind = "npm"
	PyPI        Kind = "pypi"
	Anthropic   Kind = "anthropic"
	OpenAI      Kind = "openai"
	Google      Kind = "google"
	HuggingFace Kind = "huggingface"
	Slack       Kind = "slack"
	AWS         Kind = "aws" // ID:SECRET or ID:SECRET:TOKEN
	JWT         Kind = "jwt"
	UUID        Kind = "uuid"
	HexKey      Kind = "hex"
	BasicPair   Kind = "basic" // USER:PASSWORD in base64
	Opaque      Kind = "opaque"
	SSH         Kind = "ssh" // a private key of SSH, which has no placeholder
)

// Kinds returns all kinds.
func Kinds() []Kind {
	return []Kind{GitHub, GitLab, NPM, PyPI, Anthropic, OpenAI, Google, HuggingFace, Slack, AWS, JWT, UUID, HexKey,
		BasicPair, Opaque, SSH}
}

// ParseKind parses the name of a kind.
func ParseKind(s string) (Kind, error) { return oneOf("kind", s, Kinds()) }

// oneOf returns s as one of words.
func oneOf[T ~string](what, s string, words []T) (T, error) {
	if slices.Contains(words, T(s)) {
		return T(s), nil
	}
	var all []string
	for _, w := range words {
		all = append(all, string(w))
	}
	hint := "use one of " + strings.Join(all, ", ")
	if near := fault.Nearest(s, all); near != "" {
		hint = "did you mean " + near + "? " + hint
	}
	return "", fault.New(fault.Invalid, "unknown %s %q", what, s).WithHint("%s", hint)
}

// family is a format of tokens: a pattern whose groups cover the whole token, and how each group is filled. A Literal
// group must only match what is the same in many tokens, since a Shape stores it.
type family struct {
	kind    Kind
	pattern string
	groups  []Alphabet
}

// known is a family with its compiled pattern.
type known struct {
	family
	form *regexp.Regexp
}

// formats are the families, compiled.
var formats = sync.OnceValue(func() (all []known) {
	for _, f := range families() {
		all = append(all, known{f, regexp.MustCompile(`^(?:` + f.pattern + `)$`)})
	}
	return all
})

// families returns the known formats; the first that matches is used. The sources:
//
//   - GitHub: github.blog/2021-04-05-behind-githubs-new-authentication-token-formats: the last six characters are a
//     CRC-32 in base62 of the random part. GitHub does not document github_pat_; 22 and 59 characters, with the
//     checksum of all before it, is what validators implement.
//   - GitLab: lib/authn/token_field/generator/routable_token.rb in gitlab-org/gitlab: PAYLOAD.VERSION.LENGTH and CRC-32
//     in base36 of all before it; older tokens have 20 random characters.
//   - npm: github.blog/2021-09-23-announcing-npms-new-access-token-format: as GitHub's.
//   - PyPI: a macaroon in base64url, which begins with its location (pypitoken.readthedocs.io).
//   - AWS: docs.aws.amazon.com/IAM/latest/UserGuide/reference_identifiers.html has the prefixes;
//     awsteele.com/blog/2020/09/26/aws-access-key-format.html the alphabet.
//   - Anthropic, OpenAI, Google, Hugging Face, Slack: the rules of gitleaks (config/gitleaks.toml).
//   - JWT: RFC 7519; UUID: RFC 9562; basic: RFC 7617.
func families() []family {
	const gitlab = `(gl(?:pat|dt|rt|cbt|ptt|ft|imt|agent|soat|oas|ffct)-)`
	return []family{
		{GitHub, `(github_pat_)([A-Za-z0-9]{22})(_)([A-Za-z0-9]{53})([A-Za-z0-9]{6})`,
			[]Alphabet{Literal, Alnum, Literal, Alnum, CRC62}},
		{GitHub, `(gh[pousr]_)([A-Za-z0-9]{30,245})([A-Za-z0-9]{6})`, []Alphabet{Literal, Alnum, CRC62}},
		{GitLab, gitlab + `([A-Za-z0-9_-]{27,300})(\.01\.)([0-9a-z]{2})([0-9a-z]{7})`,
			[]Alphabet{Literal, Bytes, Literal, Length36, CRC36}},
		{GitLab, gitlab + `([A-Za-z0-9_-]{20,300})`, []Alphabet{Literal, Base64URL}},
		{NPM, `(npm_)([A-Za-z0-9]{30})([A-Za-z0-9]{6})`, []Alphabet{Literal, Alnum, CRC62}},
		{PyPI, `(pypi-AgE(?:IcHlwaS5vcmc|NdGVzdC5weXBpLm9yZw))([A-Za-z0-9_-]{50,1000})`, []Alphabet{Literal, Base64URL}},
		{Anthropic, `(sk-ant-(?:api|oat|ort|sid|admin)[0-9]{2}-)([A-Za-z0-9_-]{20,1000})(AA)`,
			[]Alphabet{Literal, Base64URL, Literal}},
		{Anthropic, `(sk-ant-(?:api|oat|ort|sid|admin)[0-9]{2}-)([A-Za-z0-9_-]{20,1000})`, []Alphabet{Literal, Base64URL}},
		{OpenAI, `(sk-)([A-Za-z0-9]{20})(T3BlbkFJ)([A-Za-z0-9]{20})`, []Alphabet{Literal, Alnum, Literal, Alnum}},
		{OpenAI, `(sk-)([A-Za-z0-9]{32,400})`, []Alphabet{Literal, Alnum}},
		{OpenAI, `(sk-(?:(?:proj|svcacct|admin)-)?)([A-Za-z0-9_-]{20,200})(T3BlbkFJ)([A-Za-z0-9_-]{20,200})`,
			[]Alphabet{Literal, Base64URL, Literal, Base64URL}},
		{OpenAI, `(sk-(?:(?:proj|svcacct|admin)-)?)([A-Za-z0-9_-]{32,400})`, []Alphabet{Literal, Base64URL}},
		{Google, `(AIza)([A-Za-z0-9_-]{35})`, []Alphabet{Literal, Base64URL}},
		{Google, `(GOCSPX-)([A-Za-z0-9_-]{28})`, []Alphabet{Literal, Base64URL}},
		{Google, `(ya29\.|1//0)([A-Za-z0-9_.-]{20,})`, []Alphabet{Literal, Base64URL}},
		{HuggingFace, `(hf_|api_org_)([A-Za-z]{30,100})`, []Alphabet{Literal, Letters}},
		{HuggingFace, `(hf_|api_org_)([A-Za-z0-9]{30,100})`, []Alphabet{Literal, Alnum}},
		{Slack, `(xox[abeoprs]-)([0-9]{10,14})(-)([0-9]{10,14})(-)([A-Za-z0-9]{20,40})`,
			[]Alphabet{Literal, Digits, Literal, Digits, Literal, Alnum}},
		{Slack, `(xox[abeoprs]-)([0-9]{10,14})(-)([0-9]{10,14})(-)([0-9]{10,14})(-)([0-9a-f]{32})`,
			[]Alphabet{Literal, Digits, Literal, Digits, Literal, Digits, Literal, Hex}},
		{Slack, `(xox[abeoprs][-.]|xapp-)([A-Za-z0-9-]{20,400})`, []Alphabet{Literal, Alnum}},
		{AWS, `(AKIA|ASIA)([A-Z2-7]{16})`, []Alphabet{Literal, Base32}}, // alone too short for a placeholder
		{AWS, `(AKIA|ASIA)([A-Z2-7]{16})(:)([A-Za-z0-9+/]{40})`, []Alphabet{Literal, Base32, Literal, Base64}},
		{AWS, `(AKIA|ASIA)([A-Z2-7]{16})(:)([A-Za-z0-9+/]{40})(:)([A-Za-z0-9+/]{16,})(={0,2})`,
			[]Alphabet{Literal, Base32, Literal, Base64, Literal, Base64, Literal}},
		{JWT, `([A-Za-z0-9_-]+)(\.)([A-Za-z0-9_-]+)(\.)([A-Za-z0-9_-]+)`,
			[]Alphabet{JWTHeader, Literal, JWTClaims, Literal, Bytes}},
		{UUID, `([0-9a-f]{8})(-)([0-9a-f]{4})(-)([1-8])([0-9a-f]{3})(-)([89ab])([0-9a-f]{3})(-)([0-9a-f]{12})`,
			[]Alphabet{Hex, Literal, Hex, Literal, Literal, Hex, Literal, Variant, Hex, Literal, Hex}},
		{HexKey, `([0-9a-f]+)`, []Alphabet{Hex}},
		{HexKey, `([0-9A-F]+)`, []Alphabet{UpperHex}},
		{BasicPair, `([A-Za-z0-9+/]+)(={0,2})`, []Alphabet{UserPass, Literal}},
		{Opaque, `([0-9a-z]+)`, []Alphabet{Lower}},
		{Opaque, `([0-9A-Z]+)`, []Alphabet{Upper}},
		{Opaque, `([0-9A-Za-z]+)`, []Alphabet{Alnum}},
		{Opaque, `([0-9A-Za-z_-]+)`, []Alphabet{Base64URL}},
		{Opaque, `([0-9A-Za-z+/]+)(={0,2})`, []Alphabet{Base64, Literal}},
		{Opaque, `(?s)(.+)`, []Alphabet{Alnum}}, // other characters have a meaning in URLs and headers
	}
}

// MaxValue is the maximum length of a secret, in bytes.
const MaxValue = 16 << 10

// KindOf returns the shape of a secret. It is the zero Shape if the value cannot be a secret: it is empty, longer than
// MaxValue, contains control characters, or begins or ends with a space.
func KindOf(value string) Shape {
	if value == "" || len(value) > MaxValue || strings.TrimSpace(value) != value ||
		strings.ContainsFunc(value, func(r rune) bool { return r < ' ' || r == 0x7f }) {
		return Shape{}
	}
	for _, f := range formats() {
		groups := f.form.FindStringSubmatch(value)
		if groups == nil || !f.decodes(groups[1:]) {
			continue
		}
		s := Shape{Kind: f.kind}
		for i, text := range groups[1:] {
			switch p := (Part{Alphabet: f.groups[i], Length: len(text)}); {
			case text == "":
			case p.Alphabet == Literal:
				p.Text = text
				fallthrough
			default:
				s.Parts = append(s.Parts, p)
			}
		}
		return s
	}
	return Shape{} // not valid UTF-8
}

// decodes reports whether the groups that must have a content do.
func (f family) decodes(groups []string) bool {
	isObject := func(s, members string) bool {
		b, err := base64.RawURLEncoding.DecodeString(s)
		return err == nil && len(b) >= len(members)+2 && json.Unmarshal(b, &map[string]json.RawMessage{}) == nil
	}
	switch f.kind {
	case JWT:
		_, err := base64.RawURLEncoding.DecodeString(groups[4])
		return err == nil && isObject(groups[0], headerMembers) && isObject(groups[2], claimMembers)
	case BasicPair:
		b, err := base64.StdEncoding.DecodeString(groups[0] + groups[1])
		user, _, ok := strings.Cut(string(b), ":")
		hidden := func(r rune) bool { return r < ' ' || r > '~' }
		return err == nil && ok && user != "" && !strings.ContainsFunc(string(b), hidden)
	case GitLab:
		return f.groups[1] != Bytes || len(groups[1])%4 != 1 && groups[3] == base36(uint64(len(groups[1])), 2)
	}
	return true
}
