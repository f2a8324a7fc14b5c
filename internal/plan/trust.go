package plan

// Paths to which init writes certificates. The content of TrustDir is not part of the history.
const (
	TrustDir    = "/run/coppice-ca"
	TrustBundle = TrustDir + "/bundle.pem" // the system's authorities, and the gate's
	TrustCA     = TrustDir + "/ca.pem"     // the gate's authority alone
)

// TrustStores are the files in which systems keep trusted authorities, as listed in crypto/x509. The gate's authority
// is added to those that exist.
var TrustStores = []string{
	"/etc/ssl/certs/ca-certificates.crt",                // Debian, Ubuntu, Gentoo, Arch
	"/etc/pki/tls/certs/ca-bundle.crt",                  // Fedora, RHEL
	"/etc/ssl/ca-bundle.pem",                            // openSUSE
	"/etc/pki/tls/cacert.pem",                           // OpenELEC
	"/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem", // CentOS, RHEL 7
	"/etc/ssl/cert.pem",                                 // Alpine
}

// JavaStores are the files in which systems and JDKs keep the authorities that Java trusts. A * matches any name.
var JavaStores = []string{
	"/etc/ssl/certs/java/cacerts",              // Debian, Ubuntu, Arch, Alpine
	"/etc/pki/ca-trust/extracted/java/cacerts", // Fedora, RHEL
	"/var/lib/ca-certificates/java-cacerts",    // openSUSE
	"/usr/lib/jvm/*/lib/security/cacerts",      // packages
	"/usr/lib/jvm/*/jre/lib/security/cacerts",  // packages of Java 8
	"/usr/local/*/lib/security/cacerts",        // manually unpacked archives
	"/opt/*/lib/security/cacerts",
	"/opt/*/jre/lib/security/cacerts",
	"/opt/*/*/lib/security/cacerts", // for example in images: /opt/java/openjdk
}

// JavaStore is one Java trust store.
type JavaStore struct {
	Paths   [][]byte `json:"paths"` // absolute paths inside
	Content []byte   `json:"content"`
}

// trustEnv names the bundle for programs that bring their own authorities. Node adds the bundle to its own.
var trustEnv = []string{
	"SSL_CERT_FILE=" + TrustBundle, "CURL_CA_BUNDLE=" + TrustBundle, "REQUESTS_CA_BUNDLE=" + TrustBundle,
	"PIP_CERT=" + TrustBundle,
	"GIT_SSL_CAINFO=" + TrustBundle, "CARGO_HTTP_CAINFO=" + TrustBundle, "NODE_EXTRA_CA_CERTS=" + TrustCA,
}

// Trust makes the inside trust the authority ca, if it is not empty. Environment variables for such files
// that the sandbox sets itself take precedence.
func Trust(g *Guest, e *Enforced, ca []byte) {
	if len(ca) == 0 {
		return
	}
	g.CA = ca
	g.Env = MergeEnv(trustEnv, g.Env)
	e.Items = append(e.Items,
		Item{"inspect", On, "the gate reads the HTTP requests that rules are about; the sandbox trusts its certificates"})
}
