package decoy

import (
	"crypto/ed25519"
	"crypto/x509"
	b64 "encoding/base64"
	"encoding/binary"
	"encoding/pem"
	"fmt"
	"strings"
)

func aws(m *maker) {
	for i, profile := range []string{"default", m.pick("prod", "production", "staging", "billing")} {
		if i > 0 {
			m.line("")
		}
		m.line("[%s]", profile)
		// Requests contain the ID; of the secret they contain only a signature.
		m.line("aws_access_key_id = %s", m.keep("AKIA"+m.some(16, upper+"234567")))
		m.line("aws_secret_access_key = %s", m.secret(40, std64))
	}
}

func github(m *maker) {
	token := m.checked("gho_")
	m.line("github.com:")
	m.line("    users:")
	m.line("        %s:", m.of.Name)
	m.line("            oauth_token: %s", token)
	m.line("    git_protocol: https")
	m.line("    oauth_token: %s", token)
	m.line("    user: %s", m.of.Name)
}

func git(m *maker) {
	m.line("https://%s:%s@github.com", m.of.Name, m.checked("ghp_"))
	m.line("https://oauth2:glpat-%s@gitlab.com", m.secret(20, url64))
}

func docker(m *maker) {
	auth := func(token string) string { return b64.StdEncoding.EncodeToString([]byte(m.of.Name + ":" + token)) }
	m.line("{")
	m.line("\t\"auths\": {")
	m.line("\t\t\"ghcr.io\": {")
	m.line("\t\t\t\"auth\": \"%s\"", auth(m.checked("ghp_")))
	m.line("\t\t},")
	m.line("\t\t\"https://index.docker.io/v1/\": {")
	m.line("\t\t\t\"auth\": \"%s\"", auth("dckr_pat_"+m.secret(27, url64)))
	m.line("\t\t}")
	m.line("\t}")
	m.text.WriteString("}")
}

func kube(m *maker) {
	cluster := m.pick("prod", "production", "main", "platform")
	server := fmt.Sprintf("https://%s.gr7.eu-west-1.eks.amazonaws.com", m.some(32, "0123456789ABCDEF"))
	header := b64.RawURLEncoding.EncodeToString([]byte(`{"alg":"RS256","kid":"` + m.some(43, url64) + `"}`))
	claims := b64.RawURLEncoding.EncodeToString(
		[]byte(`{"iss":"kubernetes/serviceaccount","kubernetes.io/serviceaccount/namespace":"kube-system","kubernetes.io/serviceaccount/service-account.name":"deployer","kubernetes.io/serviceaccount/service-account.uid":"` +
			m.some(8, hexes) + "-" + m.some(4, hexes) + "-4" + m.some(3, hexes) + "-9" + m.some(3, hexes) + "-" +
			m.some(12, hexes) + `","sub":"system:serviceaccount:kube-system:deployer"}`))
	m.line("apiVersion: v1")
	m.line("clusters:")
	m.line("- cluster:")
	m.line("    server: %s", server)
	m.line("  name: %s", cluster)
	m.line("contexts:")
	m.line("- context:")
	m.line("    cluster: %s", cluster)
	m.line("    user: deployer")
	m.line("  name: %s", cluster)
	m.line("current-context: %s", cluster)
	m.line("kind: Config")
	m.line("preferences: {}")
	m.line("users:")
	m.line("- name: deployer")
	m.line("  user:")
	m.line("    token: %s.%s.%s", header, claims, m.secret(342, url64))
}

// ssh writes a private key in the format of ssh-keygen (PROTOCOL.key of OpenSSH), without a passphrase.
func ssh(m *maker) {
	key := ed25519.NewKeyFromSeed(m.bytes(ed25519.SeedSize))
	public := key[ed25519.SeedSize:]
	text := func(b []byte, s []byte) []byte {
		return append(binary.BigEndian.AppendUint32(b, uint32(len(s))), s...)
	}
	const algorithm = "ssh-ed25519"
	blob := text(text(nil, []byte(algorithm)), public)
	check := m.bytes(4)
	secret := append(append([]byte{}, check...), check...)
	secret = text(text(text(text(secret, []byte(algorithm)), public), key), []byte(m.of.Name+"@"+m.of.Host))
	for pad := byte(1); len(secret)%8 != 0; pad++ {
		secret = append(secret, pad)
	}
	all := append([]byte("openssh-key-v1\x00"), text(text(text(nil, []byte("none")), []byte("none")), nil)...)
	all = text(text(binary.BigEndian.AppendUint32(all, 1), blob), secret)
	m.line("-----BEGIN OPENSSH PRIVATE KEY-----")
	lines := wrapped(b64.StdEncoding.EncodeToString(all), 70)
	m.line("%s", strings.Join(lines, "\n"))
	m.line("-----END OPENSSH PRIVATE KEY-----")
	// The seed is the 32 bytes from 161 on, so it is in the characters 215 to 256, which are in the fourth line.
	m.keep(lines[3][5:47])
}

func wrapped(s string, width int) (lines []string) {
	for len(s) > width {
		lines, s = append(lines, s[:width]), s[width:]
	}
	return append(lines, s)
}

func pemKey(m *maker) {
	der, err := x509.MarshalPKCS8PrivateKey(ed25519.NewKeyFromSeed(m.bytes(ed25519.SeedSize)))
	if err != nil {
		m.err = err
		return
	}
	text := string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}))
	m.text.WriteString(text)
	m.keep(strings.Split(text, "\n")[1][22:]) // the prefix is the same in all keys
}

func pgpass(m *maker) {
	m.line("db-%s.internal:5432:*:%s:%s", m.pick("prod", "main", "primary"), m.pick("app", "deploy", m.of.Name),
		m.secret(28, alnum))
	m.line("localhost:5432:*:postgres:%s", m.secret(24, alnum))
}

func mysql(m *maker) {
	m.line("[client]")
	m.line("host = %s", m.pick("db.internal", "mysql-prod.internal", "10.20.3.14"))
	m.line("user = %s", m.pick("app", "deploy", m.of.Name))
	m.line("password = %s", m.secret(28, alnum))
}

func vault(m *maker) { m.text.WriteString("hvs.CAESI" + m.secret(86, url64)) }

func huggingface(m *maker) { m.text.WriteString("hf_" + m.secret(34, upper+lower)) }

func cargo(m *maker) {
	m.line("[registry]")
	m.line("token = \"cio%s\"", m.secret(32, alnum))
}

func netrc(m *maker) {
	m.line("machine github.com")
	m.line("  login %s", m.of.Name)
	m.line("  password %s", m.checked("ghp_"))
	for _, host := range []string{"api.heroku.com", "git.heroku.com"} {
		m.line("machine %s", host)
		m.line("  login %s@%s", m.of.Name, "gmail.com")
		m.line("  password %s", m.uuid())
	}
}

func npm(m *maker) {
	m.line("//registry.npmjs.org/:_authToken=%s", m.checked("npm_"))
}

func pypi(m *maker) {
	m.line("[distutils]")
	m.line("index-servers =")
	m.line("    pypi")
	m.line("")
	m.line("[pypi]")
	m.line("username = __token__")
	m.line("password = pypi-AgEIcHlwaS5vcmc%s", m.secret(152, url64))
}

// variables writes environment variables, for paths without a known format.
func variables(m *maker) {
	m.line("APP_ENV=production")
	m.line("DATABASE_URL=postgres://app:%s@%s:5432/app", m.secret(28, alnum),
		m.pick("db.internal", "db-prod.internal", "10.20.3.11"))
	m.line("REDIS_URL=redis://:%s@cache.internal:6379/0", m.secret(32, hexes))
	m.line("SECRET_KEY_BASE=%s", m.secret(64, hexes))
	m.line("STRIPE_SECRET_KEY=sk_live_51%s", m.secret(97, alnum))
	m.line("AWS_ACCESS_KEY_ID=%s", m.keep("AKIA"+m.some(16, upper+"234567")))
	m.line("AWS_SECRET_ACCESS_KEY=%s", m.secret(40, std64))
}
