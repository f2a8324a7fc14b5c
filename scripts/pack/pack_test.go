package main

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"oras.land/oras-go/v2/content"
	"oras.land/oras-go/v2/content/oci"
)

var at = time.Unix(1_700_000_000, 0).UTC()

// tree returns the same files with other times, modes of another umask, and another order of insertion.
func tree(umask fs.FileMode, when time.Time) fstest.MapFS {
	all := fstest.MapFS{}
	for _, name := range []string{"man/b.1.gz", "coppice", "man/a.1.gz", "LICENSE"} {
		perm := fs.FileMode(0o666)
		if name == "coppice" {
			perm = 0o777
		}
		all[name] = &fstest.MapFile{Data: []byte("content of " + name), Mode: perm &^ umask, ModTime: when}
	}
	return all
}

// listing describes a tar file, and fails the test if an entry is not root's or has another time.
func listing(t *testing.T, r io.Reader) (all []string) {
	t.Helper()
	for tr := tar.NewReader(r); ; {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			return all
		}
		if err != nil {
			t.Fatal(err)
		}
		if h.Uid != 0 || h.Gid != 0 || h.Uname != "" || h.Gname != "" || !h.ModTime.Equal(at) {
			t.Errorf("%s: %+v", h.Name, h)
		}
		b, err := io.ReadAll(tr)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, fmt.Sprintf("%s %o %s", h.Name, h.Mode, b))
	}
}

func TestArchive_IsTheSameBytesForTheSameContent(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"dist/coppice_1.tar.gz", "dist/coppice_1.zip"} {
		var one, two bytes.Buffer
		if err := writeArchive(&one, name, tree(0o022, at), at); err != nil {
			t.Fatal(err)
		}
		if err := writeArchive(&two, name, tree(0o077, at.Add(time.Hour)), at); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(one.Bytes(), two.Bytes()) {
			t.Errorf("%s depends on times or modes of the build", name)
		}
	}
}

func TestArchive_HasFilesBelowItsName(t *testing.T) {
	t.Parallel()
	var b bytes.Buffer
	if err := writeArchive(&b, "dist/coppice_1.tar.gz", tree(0, at), at); err != nil {
		t.Fatal(err)
	}
	z, err := gzip.NewReader(&b)
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"coppice_1/ 755 ", "coppice_1/LICENSE 644 content of LICENSE", "coppice_1/coppice 755 content of coppice",
		"coppice_1/man/ 755 ", "coppice_1/man/a.1.gz 644 content of man/a.1.gz", "coppice_1/man/b.1.gz 644 content of man/b.1.gz"}
	if got := listing(t, z); !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestArchive_ZipHasModesAndTimes(t *testing.T) {
	t.Parallel()
	var b bytes.Buffer
	if err := writeArchive(&b, "coppice_1.zip", tree(0, at), at); err != nil {
		t.Fatal(err)
	}
	z, err := zip.NewReader(bytes.NewReader(b.Bytes()), int64(b.Len()))
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, f := range z.File {
		if !f.Modified.Equal(at) {
			t.Errorf("%s has the time %v", f.Name, f.Modified)
		}
		got = append(got, fmt.Sprintf("%s %o", f.Name, f.Mode()))
	}
	want := []string{"coppice_1/LICENSE 644", "coppice_1/coppice 755", "coppice_1/man/a.1.gz 644", "coppice_1/man/b.1.gz 644"}
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestArchive_RefusesLinksAndUnknownForms(t *testing.T) {
	t.Parallel()
	link := fstest.MapFS{"link": {Data: []byte("/etc/passwd"), Mode: fs.ModeSymlink | 0o777}}
	for _, name := range []string{"a.tar.gz", "a.zip"} {
		if err := writeArchive(io.Discard, name, link, at); err == nil || !strings.Contains(err.Error(), "cannot pack link") {
			t.Errorf("%s with a link: %v", name, err)
		}
	}
	if err := writeArchive(io.Discard, "a.rar", tree(0, at), at); err == nil || !strings.Contains(err.Error(), "must be") {
		t.Errorf("rar: %v", err)
	}
}

// TestImage_IsReadByOras reads the image as another implementation does, which checks the digest of each blob.
func TestImage_IsReadByOras(t *testing.T) {
	t.Parallel()
	name := filepath.Join(t.TempDir(), "image.tar")
	if err := os.WriteFile(name, imageBytes(t, 0, at), 0o644); err != nil {
		t.Fatal(err)
	}
	store, err := oci.NewFromTar(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	top, err := store.Resolve(t.Context(), "1.2.3")
	if err != nil {
		t.Fatal(err)
	}
	fetch := func(d ocispec.Descriptor, into any) []byte {
		t.Helper()
		b, err := content.FetchAll(t.Context(), store, d)
		if err != nil {
			t.Fatal(err)
		}
		if into != nil {
			if err := json.Unmarshal(b, into); err != nil {
				t.Fatal(err)
			}
		}
		return b
	}
	var index ocispec.Index
	fetch(top, &index)
	var platforms []string
	for _, d := range index.Manifests {
		var m ocispec.Manifest
		var c ocispec.Image
		fetch(d, &m)
		fetch(m.Config, &c)
		if c.Architecture != d.Platform.Architecture || c.OS != "linux" || !c.Created.Equal(at) {
			t.Errorf("config %+v of %+v", c, d.Platform)
		}
		if !slices.Equal(c.Config.Entrypoint, []string{"/usr/bin/coppice"}) ||
			c.Config.Labels[ocispec.AnnotationRevision] != "abc" || c.Config.Labels[ocispec.AnnotationVersion] != "1.2.3" {
			t.Errorf("config %+v", c.Config)
		}
		z, err := gzip.NewReader(bytes.NewReader(fetch(m.Layers[0], nil)))
		if err != nil {
			t.Fatal(err)
		}
		layer, err := io.ReadAll(z)
		if err != nil {
			t.Fatal(err)
		}
		if got := c.RootFS.DiffIDs; len(got) != 1 || got[0] != digest.FromBytes(layer) {
			t.Errorf("layers %q", got)
		}
		want := []string{"usr/ 755 ", "usr/bin/ 755 ", "usr/bin/coppice 755 program for " + d.Platform.Architecture}
		if got := listing(t, bytes.NewReader(layer)); !slices.Equal(got, want) {
			t.Errorf("the layer has %q, want %q", got, want)
		}
		platforms = append(platforms, d.Platform.Architecture+d.Platform.Variant)
	}
	if !slices.Equal(platforms, []string{"amd64", "arm64v8"}) {
		t.Errorf("platforms %q", platforms)
	}
}

// imageBytes returns an image with one program for each of two architectures.
func imageBytes(t *testing.T, umask fs.FileMode, when time.Time) []byte {
	t.Helper()
	trees := fstest.MapFS{}
	for _, arch := range []string{"arm64", "amd64"} {
		trees[arch+"/usr/bin/coppice"] = &fstest.MapFile{Data: []byte("program for " + arch), Mode: 0o777 &^ umask, ModTime: when}
	}
	var b bytes.Buffer
	if err := writeImage(&b, image{version: "1.2.3", revision: "abc", created: at}, trees); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func TestImage_IsTheSameBytesForTheSameContent(t *testing.T) {
	t.Parallel()
	one, two := imageBytes(t, 0o022, at), imageBytes(t, 0o077, at.Add(time.Hour))
	if !bytes.Equal(one, two) {
		t.Error("the image depends on times or modes of the build")
	}
	listing(t, bytes.NewReader(one))
}

// TestImage_NamesBlobsForDocker checks manifest.json, which older versions of Docker read.
func TestImage_NamesBlobsForDocker(t *testing.T) {
	t.Parallel()
	files := map[string][]byte{}
	for tr := tar.NewReader(bytes.NewReader(imageBytes(t, 0, at))); ; {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if files[h.Name], err = io.ReadAll(tr); err != nil {
			t.Fatal(err)
		}
	}
	var docker []dockerImage
	if err := json.Unmarshal(files["manifest.json"], &docker); err != nil {
		t.Fatal(err)
	}
	var tags []string
	for _, d := range docker {
		tags = append(tags, d.RepoTags...)
		for _, name := range append(d.Layers, d.Config) {
			if digest.FromBytes(files[name]).Encoded() != filepath.Base(name) {
				t.Errorf("the layout has no file %s", name)
			}
		}
	}
	if !slices.Equal(tags, []string{"coppice:1.2.3-amd64", "coppice:1.2.3-arm64"}) {
		t.Errorf("tags %q", tags)
	}
}

func TestImage_NeedsAnArchitecture(t *testing.T) {
	t.Parallel()
	if err := writeImage(io.Discard, image{created: at}, fstest.MapFS{}); err == nil {
		t.Error("an image for no architecture was written")
	}
}

func TestComponents_AreThoseOfTheRelease(t *testing.T) {
	t.Parallel()
	const made = `{"$schema": "s", "bomFormat": "CycloneDX", "specVersion": "1.6", "version": 1,
		"metadata": {"tools": [{"name": "cyclonedx-gomod", "hashes": [{"alg": "MD5", "content": "00"}]}],
			"component": {"bom-ref": "main", "type": "application", "name": "example.com/m"}},
		"components": [{"name": "example.com/other", "version": "v1.0.0"}],
		"dependencies": [{"ref": "main", "dependsOn": ["x"]}]}`
	var out strings.Builder
	if err := components(&out, strings.NewReader(made), "1.2.3"); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`"version": "1.2.3"`, `"purl": "pkg:golang/example.com/m@v1.2.3"`, `"example.com/other"`,
		`"pkg:npm/swagger-ui-dist@`, `"dependsOn"`} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %s in %s", want, out.String())
		}
	}
	if strings.Contains(out.String(), "MD5") {
		t.Errorf("a digest of the tool in %s", out.String())
	}
	for _, invalid := range []string{"", "{}", strings.Replace(made, `"version": 1,`, `"version": 1, "unknown": 2,`, 1)} {
		if err := components(io.Discard, strings.NewReader(invalid), "1.2.3"); err == nil {
			t.Errorf("%s was accepted", invalid)
		}
	}
}

// TestComponents_NameTheFilesInTheRepository checks files against docs/dependencies.md.
func TestComponents_NameTheFilesInTheRepository(t *testing.T) {
	t.Parallel()
	b, err := os.ReadFile("../../docs/dependencies.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		hash := f["hashes"].([]any)[0].(map[string]any)["content"].(string)
		for _, want := range []string{f["name"].(string), f["version"].(string), hash} {
			if !strings.Contains(string(b), want) {
				t.Errorf("docs/dependencies.md does not have %s", want)
			}
		}
	}
}

func TestNotes_AreTheSectionOfTheVersion(t *testing.T) {
	t.Parallel()
	const log = "# Changelog\n\nWhat changed.\n\n## 0.2.0 (unreleased)\n\n### Added\n\n- Two.\n\n## 0.1.0 (2026-12-01)\n\n- One.\n"
	for _, c := range []struct{ log, version, want string }{
		{log, "0.2.0", "### Added\n\n- Two.\n"},
		{log, "0.1.0", "- One.\n"},
		{strings.Replace(log, "0.2.0 (unreleased)", "Unreleased", 1), "0.2.0", "### Added\n\n- Two.\n"},
		{log, "0.3.0", ""},
		{log, "0.1", ""},
	} {
		var out strings.Builder
		err := notes(&out, strings.NewReader(c.log), c.version)
		if out.String() != c.want || (err != nil) != (c.want == "") {
			t.Errorf("%s: %q, %v", c.version, out.String(), err)
		}
	}
}

func TestSums_CoverAllFiles(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for _, name := range []string{"b", "a", sumsFile} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(name), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	var out strings.Builder
	if err := sums(&out, dir); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(filepath.Join(dir, sumsFile))
	if err != nil {
		t.Fatal(err)
	}
	want := "ca978112ca1bbdcafac231b39a23dc4da786eff8147c4e72b9807785afee48bb  a\n" +
		"3e23e8160039594a33894f6564e1b1348bbd7a0088d42c4acb73eeaed59c009d  b\n"
	if string(b) != want {
		t.Errorf("got %s", b)
	}
	if got := strings.Fields(out.String()); !slices.Equal(got, []string{"0.0", "MB", "a", "0.0", "MB", "b"}) {
		t.Errorf("listed %q", got)
	}
}

func TestCreate_ReplacesNoFileAndNeedsATime(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	name := filepath.Join(dir, "a.tar.gz")
	if err := run([]string{"archive", name, dir}, "", nil, io.Discard); err == nil || !strings.Contains(err.Error(), "SOURCE_DATE_EPOCH") {
		t.Errorf("without a time: %v", err)
	}
	source := t.TempDir()
	if err := run([]string{"archive", name, source}, "1", nil, io.Discard); err != nil {
		t.Fatal(err)
	}
	if err := run([]string{"archive", name, source}, "1", nil, io.Discard); !errors.Is(err, fs.ErrExist) {
		t.Errorf("the file exists: %v", err)
	}
	if err := run(nil, "1", nil, io.Discard); err == nil || !strings.Contains(err.Error(), "usage") {
		t.Errorf("without a command: %v", err)
	}
}
