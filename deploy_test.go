package coppice_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

// TestDeploy_NamesKnownVariables checks that every variable in deploy/ is one that the daemon or the client reads.
func TestDeploy_NamesKnownVariables(t *testing.T) {
	guide, err := os.ReadFile("docs/guides/daemon.md")
	if err != nil {
		t.Fatal(err)
	}
	variable := regexp.MustCompile(`\bCOPPICE_[A-Z_]+\b`)
	known := variable.FindAllString(string(guide), -1)
	err = filepath.WalkDir("deploy", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		text, err := os.ReadFile(name)
		for _, v := range variable.FindAllString(string(text), -1) {
			if !slices.Contains(known, v) {
				t.Errorf("%s: %s is not in docs/guides/daemon.md", name, v)
			}
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestDeploy_IsHardened checks that the containers of deploy/ have no privileges.
func TestDeploy_IsHardened(t *testing.T) {
	for _, c := range containers(t) {
		hardened := map[string]bool{
			"no privilege escalation": c.Security.Escalation != nil && !*c.Security.Escalation,
			"a read-only root":        c.Security.ReadOnly,
			"no capabilities":         slices.Equal(c.Security.Capabilities.Drop, []string{"ALL"}) && c.Security.Capabilities.Add == nil,
		}
		for what, ok := range hardened {
			if !ok {
				t.Errorf("%s: container %s lacks %s", c.file, c.Name, what)
			}
		}
	}
	for _, name := range []string{"deploy/seccomp.json", "deploy/devcontainer/devcontainer.json"} {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(text)) { // JSON with comments
			if strings.HasPrefix(line, "//") {
				text = bytes.TrimPrefix(text, []byte(line))
			}
		}
		if !json.Valid(text) {
			t.Errorf("%s is not JSON", name)
		}
	}
}

// container is a container of a manifest for Kubernetes.
type container struct {
	Name     string
	Security struct {
		Escalation   *bool `yaml:"allowPrivilegeEscalation"`
		ReadOnly     bool  `yaml:"readOnlyRootFilesystem"`
		Capabilities struct{ Drop, Add []string }
	} `yaml:"securityContext"`
	file string
}

// containers returns the containers of deploy/kubernetes, and those of deploy/compose.yaml. It checks what holds for
// their pods.
func containers(t *testing.T) (all []container) {
	t.Helper()
	files, err := filepath.Glob("deploy/kubernetes/*") // "kubectl apply -f" reads every file of the directory
	if err != nil || len(files) == 0 {
		t.Fatal("no manifests: ", err)
	}
	for _, file := range files {
		for _, set := range yamlDocuments[struct {
			Kind    string
			Version string `yaml:"apiVersion"`
			Spec    struct {
				Template struct {
					Spec struct {
						Token    *bool `yaml:"automountServiceAccountToken"`
						Security struct {
							NonRoot bool              `yaml:"runAsNonRoot"`
							Seccomp map[string]string `yaml:"seccompProfile"`
						} `yaml:"securityContext"`
						Containers []container
					}
				}
			}
		}](t, file) {
			if set.Kind == "" || set.Version == "" {
				t.Errorf("%s is not a Kubernetes object: kubectl apply -f deploy/kubernetes/ fails", file)
			}
			pod := set.Spec.Template.Spec
			if len(pod.Containers) > 0 && (pod.Token == nil || *pod.Token || !pod.Security.NonRoot || pod.Security.Seccomp == nil) {
				t.Errorf("%s: a pod has a token of its service account, may run as root, or has no filter of system calls", file)
			}
			for _, c := range pod.Containers {
				c.file = file
				all = append(all, c)
			}
		}
	}
	const compose = "deploy/compose.yaml"
	for _, doc := range yamlDocuments[struct {
		Services map[string]struct {
			User     string
			ReadOnly bool     `yaml:"read_only"`
			Drop     []string `yaml:"cap_drop"`
			Add      []string `yaml:"cap_add"`
			Options  []string `yaml:"security_opt"`
		}
	}](t, compose) {
		for name, s := range doc.Services {
			c := container{Name: name, file: compose}
			c.Security.ReadOnly, c.Security.Capabilities.Drop, c.Security.Capabilities.Add = s.ReadOnly, s.Drop, s.Add
			escalates := s.User == "" || s.User == "0" || !slices.Contains(s.Options, "no-new-privileges:true")
			c.Security.Escalation = &escalates
			all = append(all, c)
		}
	}
	if len(all) < 5 {
		t.Fatalf("%d containers, want five", len(all))
	}
	return all
}

// yamlDocuments decodes the documents of a YAML file.
func yamlDocuments[T any](t *testing.T, file string) (all []T) {
	t.Helper()
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for d := yaml.NewDecoder(f); ; {
		var doc T
		err := d.Decode(&doc)
		if errors.Is(err, io.EOF) {
			return all
		}
		if err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		all = append(all, doc)
	}
}
