package cli

import (
	"slices"
	"testing"
)

// TestKnownKeys has lines that ssh-keygen -H made.
func TestKnownKeys(t *testing.T) {
	t.Parallel()
	const (
		a   = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"
		b   = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAB"
		bad = "ssh-ed25519 AAAA"
	)
	const hashed = "|1|qI+xs7Qo13YufHpco5hNxIJekbc=|TFs9ic/H5PpseZE3xrh2vE1YjT4="
	for _, x := range []struct {
		text string
		port uint16
		want []string
	}{
		{"git.example " + a + " comment\n", 22, []string{a}},
		{"x.example,git.example,192.0.2.1 " + a + "\ngit.example " + b, 22, []string{a, b}},
		{"git.example " + a + "\nGIT.example " + a, 22, []string{a}},
		{"*.example " + a + "\n!git.example,*.example " + b, 22, []string{a}},
		{"git?example " + a + "\ngit.exampl " + b + "\n.example " + b, 22, []string{a}},
		{"[git.example]:2222 " + a + "\ngit.example " + b, 2222, []string{a}},
		{"[git.example]:2222 " + a, 22, nil},
		{"# git.example " + a + "\n\n@cert-authority git.example " + a + "\ngit.example " + bad + "\nx", 22, nil},
		{"git.example " + a + "\n@revoked git.example " + a + "\ngit.example " + b, 22, []string{b}},
		{hashed + " " + a + "\n|1|x|y " + b, 22, []string{a}},
		{hashed + " " + a, 2222, nil},
	} {
		if got := knownKeys([]byte(x.text), []string{"git.example"}, []uint16{x.port}); !slices.Equal(got, x.want) {
			t.Errorf("%q: %q", x.text, got)
		}
	}
}

// TestSharedKeys checks that one of several hosts cannot pass for another.
func TestSharedKeys(t *testing.T) {
	t.Parallel()
	const (
		a = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"
		b = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAB"
	)
	for _, x := range []struct {
		text  string
		ports []uint16
		want  []string
	}{
		{"a.example,b.example " + a + "\nb.example " + b, []uint16{22}, []string{a}},
		{"a.example " + a + "\nb.example " + b, []uint16{22}, nil},
		{"a.example,b.example " + a + "\n[a.example]:2222,[b.example]:2222 " + b, []uint16{22, 2222}, nil},
		{"*.example " + a + "\n@revoked B.example " + a, []uint16{22}, nil},
	} {
		hosts := []string{"A.example", "B.Example"}
		got, err := sharedKeys([]byte(x.text), hosts, x.ports)
		none := len(knownKeys([]byte(x.text), hosts, x.ports)) == 0
		if !slices.Equal(got, x.want) || (err == nil) != (x.want != nil || none) {
			t.Errorf("%q: %q, %v", x.text, got, err)
		}
	}
}
