package main

import (
	"encoding/json"
	"fmt"
	"io"
)

// files lists what the program contains and is not a Go module: see docs/dependencies.md.
var files = []map[string]any{{
	"bom-ref": "pkg:npm/swagger-ui-dist@5.35.0", "type": "library", "scope": "required",
	"name": "swagger-ui-dist", "version": "5.35.0", "purl": "pkg:npm/swagger-ui-dist@5.35.0",
	"hashes": []any{map[string]any{"alg": "SHA-256",
		"content": "1b8e891893404ea4c3558b6a87e2a3e494e7eedba41168c2ece5800a391a6ea6"}},
	"licenses": []any{map[string]any{"license": map[string]any{"id": "Apache-2.0"}}},
}}

// components completes a list of components that cyclonedx-gomod made of go.mod: with the version of the program, which
// it takes from git otherwise, and with files. It leaves out the digests of cyclonedx-gomod itself, which differ by the
// machine on which it was compiled.
func components(out io.Writer, in io.Reader, version string) error {
	var document struct {
		Schema       string           `json:"$schema"`
		Format       string           `json:"bomFormat"`
		Spec         string           `json:"specVersion"`
		Version      int              `json:"version"`
		Metadata     map[string]any   `json:"metadata"`
		Components   []map[string]any `json:"components"`
		Dependencies []any            `json:"dependencies"`
	}
	d := json.NewDecoder(in)
	d.DisallowUnknownFields()
	if err := d.Decode(&document); err != nil {
		return fmt.Errorf("read a CycloneDX document: %w", err)
	}
	program, ok := document.Metadata["component"].(map[string]any)
	if !ok || document.Format != "CycloneDX" || len(document.Components) == 0 {
		return fmt.Errorf("invalid CycloneDX document: must have a main component and others")
	}
	program["version"] = version
	program["purl"] = fmt.Sprintf("pkg:golang/%v@v%s", program["name"], version)
	tools, _ := document.Metadata["tools"].([]any)
	for _, tool := range tools {
		if t, ok := tool.(map[string]any); ok {
			delete(t, "hashes")
		}
	}
	document.Components = append(document.Components, files...)
	e := json.NewEncoder(out)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	return e.Encode(document)
}
