package registry_test

import (
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"testing"

	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/registry"
	"github.com/coppice-dev/coppice/internal/registrytest"
)

func digestOf(b []byte) string {
	sum := sha256.Sum256(b)
	return "sha256:" + hex.EncodeToString(sum[:])
}

func blobOf(b []byte) registry.Blob { return registry.Blob{Digest: digestOf(b), Size: int64(len(b))} }

func random(t *testing.T, n int) []byte {
	t.Helper()
	b := make([]byte, n)
	if _, err := rand.Read(b); err != nil {
		t.Fatal(err)
	}
	return b
}

func open(t *testing.T, name string, opt registry.Options) *registry.Repository {
	t.Helper()
	ref, err := registry.Parse(name)
	if err != nil {
		t.Fatal(err)
	}
	opt.PlainHTTP = true
	r, err := registry.Open(ref, opt)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// logins are the ways to store the credentials of a registry.
var logins = map[string]func(t *testing.T, host, home string) map[string]string{
	"docker": func(t *testing.T, host, home string) map[string]string {
		return map[string]string{"HOME": home, "": file(t, home, ".docker/config.json", auths(host))}
	},
	"podman": func(t *testing.T, host, home string) map[string]string {
		return map[string]string{"HOME": home, "XDG_RUNTIME_DIR": home + "/run",
			"": file(t, home, "run/containers/auth.json", auths(host+"/team"))}
	},
	"elsewhere": func(t *testing.T, host, home string) map[string]string {
		return map[string]string{"HOME": home, "DOCKER_CONFIG": home + "/d", "": file(t, home, "d/config.json", auths(host))}
	},
}

func auths(key string) string {
	return `{"auths": {"` + key + `": {"auth": "` +
		base64.StdEncoding.EncodeToString([]byte(registrytest.User+":"+registrytest.Password)) + `"}}}`
}

func file(t *testing.T, dir, name, text string) string {
	t.Helper()
	at := filepath.Join(dir, name)
	if err := os.MkdirAll(filepath.Dir(at), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(at, []byte(text), 0o700); err != nil {
		t.Fatal(err)
	}
	return at
}

func userOf(env map[string]string) *registry.Credentials {
	return registry.UserCredentials(func(k string) string { return env[k] })
}

// roundTrip puts an artifact and gets it back.
func roundTrip(t *testing.T, r *registry.Repository) registry.Blob {
	t.Helper()
	content := random(t, 3<<20)
	b := blobOf(content)
	for i := range 2 {
		sent, err := r.Put(t.Context(), b, bytes.NewReader(content))
		if err != nil || sent != (i == 0) {
			t.Fatalf("put %d: sent %v, %v", i, sent, err)
		}
	}
	m, err := registry.NewManifest([]registry.Layer{{Blob: b, DiffID: digestOf(nil)}})
	if err != nil {
		t.Fatal(err)
	}
	if err := r.PutManifest(t.Context(), m, "one"); err != nil {
		t.Fatal(err)
	}
	var got bytes.Buffer
	if err := r.Get(t.Context(), b, &got); err != nil || !bytes.Equal(got.Bytes(), content) {
		t.Errorf("%d bytes, %v", got.Len(), err)
	}
	if err := r.Get(t.Context(), blobOf([]byte("never")), io.Discard); !fault.Is(err, fault.NotFound) {
		t.Errorf("a missing blob: %v", err)
	}
	return m.Blob()
}

func TestArtifact_RoundTrips(t *testing.T) {
	t.Parallel()
	host, _ := registrytest.Start(t, registrytest.Nobody)
	m := roundTrip(t, open(t, host+"/team/layers", registry.Options{}))
	for _, ref := range []string{"one", m.Digest} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet,
			"http://"+host+"/v2/team/layers/manifests/"+ref, nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Accept", "application/vnd.oci.image.manifest.v1+json")
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		var said struct {
			ArtifactType string
			Config       struct{ MediaType string }
			Layers       []struct {
				MediaType   string
				Annotations map[string]string
			}
		}
		if err := json.NewDecoder(res.Body).Decode(&said); err != nil {
			t.Fatal(err)
		}
		if said.ArtifactType != "application/vnd.coppice.layers.v1" ||
			said.Config.MediaType != "application/vnd.oci.empty.v1+json" || len(said.Layers) != 1 ||
			said.Layers[0].MediaType != "application/vnd.oci.image.layer.v1.tar+zstd" ||
			said.Layers[0].Annotations[registry.DiffID] != digestOf(nil) {
			t.Errorf("%s is %+v", ref, said)
		}
	}
}

func TestRegistry_Authenticates(t *testing.T) {
	t.Parallel()
	for name, auth := range map[string]registrytest.Auth{"basic": registrytest.Basic, "token": registrytest.Token} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			host, _ := registrytest.Start(t, auth)
			for login, in := range logins {
				t.Run(login, func(t *testing.T) {
					roundTrip(t, open(t, host+"/team/"+login, registry.Options{Credentials: userOf(in(t, host, t.TempDir()))}))
				})
			}
			env := logins["docker"](t, "registry.example.org", t.TempDir())
			for what, opt := range map[string]registry.Options{"nobody": {},
				"who is known elsewhere": {Credentials: userOf(env)}} {
				if _, err := open(t, host+"/team/layers", opt).
					Put(t.Context(), blobOf([]byte("x")), bytes.NewReader([]byte("x"))); !fault.Is(err, fault.Denied) {
					t.Errorf("%s: %v", what, err)
				}
			}
		})
	}
}

// TestCredentials_FromHelper uses a credential helper in PATH. Errors must not contain its output.
func TestCredentials_FromHelper(t *testing.T) {
	host, _ := registrytest.Start(t, registrytest.Basic)
	home := t.TempDir()
	file(t, home, "bin/docker-credential-test",
		"#!/bin/sh\nread host\n[ \"$host\" = "+host+
			" ] || { echo 'not for '$host; exit 1; }\necho '{\"ServerURL\": \"x\", \"Username\": \""+registrytest.User+
			"\", \"Secret\": \""+registrytest.Password+"\"}'\n")
	file(t, home, "bin/docker-credential-broken", "#!/bin/sh\necho 'a secret: "+registrytest.Password+"'; exit 1\n")
	t.Setenv("PATH", home+"/bin:"+os.Getenv("PATH"))
	for helper, works := range map[string]bool{"test": true, "broken": false, "missing": false} {
		file(t, home, ".docker/config.json", `{"credHelpers": {"`+host+`": "`+helper+`"}}`)
		r := open(t, host+"/team/"+helper, registry.Options{Credentials: userOf(map[string]string{"HOME": home})})
		if works {
			roundTrip(t, r)
			continue
		}
		_, err := r.Put(t.Context(), blobOf([]byte("x")), bytes.NewReader([]byte("x")))
		if !fault.Is(err, fault.Denied) || bytes.Contains([]byte(err.Error()), []byte(registrytest.Password)) {
			t.Errorf("%s: %v", helper, err)
		}
	}
}
