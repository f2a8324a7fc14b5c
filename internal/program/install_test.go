//go:build linux

package program_test

import (
	"archive/zip"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/mod/module"
	modzip "golang.org/x/mod/zip"
)

const path = "github.com/coppice-dev/coppice"

// TestInstall_FindsTheHelpersOfItsVersion installs two versions of all programs as users do, with go install
// github.com/coppice-dev/coppice/cmd/...@VERSION, from a module proxy that serves this checkout as both.
func TestInstall_FindsTheHelpersOfItsVersion(t *testing.T) {
	if testing.Short() {
		t.Skip("needs full-run: everything is compiled twice")
	}
	proxy, bin := t.TempDir(), t.TempDir()
	for _, version := range []string{"v0.0.1", "v0.0.2"} {
		publish(t, proxy, version)
		install := exec.Command("go", "install", path+"/cmd/...@"+version)
		install.Dir = t.TempDir()
		install.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=-modcacherw", "GOBIN="+filepath.Join(bin, version),
			"GOPROXY=file://"+proxy+","+goEnv(t, "GOPROXY"), "GONOSUMDB="+path, "GOSUMDB=off")
		if out, err := install.CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	probe := func(version string) (string, error) {
		cmd := exec.Command(filepath.Join(bin, version, "coppice"), "system", "probe")
		cmd.Env = append(os.Environ(), "COPPICE_HOME="+t.TempDir(), "COPPICE_EXEC_PATH=", "COPPICE_IDLE=1s")
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	if out, err := probe("v0.0.1"); err != nil {
		t.Errorf("with its own helpers: %v: %s", err, out)
	}
	helper := filepath.Join(bin, "v0.0.2", "coppice-init")
	if err := os.Rename(filepath.Join(bin, "v0.0.1", "coppice-init"), helper); err != nil {
		t.Fatal(err)
	}
	if out, err := probe("v0.0.2"); err == nil ||
		!strings.Contains(out, "coppice-init has version v0.0.1, but this program has v0.0.2") ||
		!strings.Contains(out, "go install") {
		t.Errorf("with a helper of another version: %v: %s", err, out)
	}
	if err := os.Remove(helper); err != nil {
		t.Fatal(err)
	}
	if out, err := probe("v0.0.2"); err == nil || !strings.Contains(out, "helper program coppice-init not found") ||
		!strings.Contains(out, "go install") {
		t.Errorf("without the helper: %v: %s", err, out)
	}
}

// publish adds this checkout to a module proxy on disk (go.dev/ref/mod, GOPROXY protocol).
func publish(t *testing.T, proxy, version string) {
	t.Helper()
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(proxy, path, "@v")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	f, err := os.Create(filepath.Join(dir, version+".zip"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := modzip.CreateFromDir(f, module.Version{Path: path, Version: version}, root); err != nil {
		t.Fatal(err)
	}
	z, err := zip.OpenReader(f.Name())
	if err != nil {
		t.Fatal(err)
	}
	defer z.Close()
	mod, err := z.Open(path + "@" + version + "/go.mod")
	if err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(mod)
	if err != nil {
		t.Fatal(err)
	}
	for name, content := range map[string]string{
		"list": version + "\n", version + ".info": `{"Version":"` + version + `"}`, version + ".mod": string(text),
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

func goEnv(t *testing.T, name string) string {
	t.Helper()
	out, err := exec.Command("go", "env", name).Output()
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(out))
}
