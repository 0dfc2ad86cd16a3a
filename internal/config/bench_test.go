package config

import (
	"bytes"
	"fmt"
	"testing"
)

// generate writes a file of groups x rules rules on two levels, in a typical style.
func generate(domain string, groups, rules int) []byte {
	var b bytes.Buffer
	fmt.Fprintf(&b, "# The limits of every tenant.\ndomain: %s\ndescriptors:\n", domain)
	for g := range groups {
		fmt.Fprintf(&b, "  - key: tenant\n    value: tenant-%04d\n    descriptors:\n", g)
		for r := range rules {
			fmt.Fprintf(&b, "      - key: path\n        value: /api/v1/resource-%03d\n        rate_limit:\n          unit: minute\n          requests_per_unit: %d\n", r, 100+r)
		}
	}
	return b.Bytes()
}

// BenchmarkCompile measures the work on rules at startup: parse them and compile the tree.
func BenchmarkCompile(b *testing.B) {
	tenFiles := make([]File, 10)
	for i := range tenFiles {
		tenFiles[i] = File{Name: fmt.Sprintf("rules-%d.yaml", i), Data: generate(fmt.Sprintf("domain-%d", i), 100, 100)}
	}
	// With carriage returns, the file is read as a whole. Nothing else changes.
	whole := bytes.ReplaceAll(generate("bench", 1000, 100), []byte("\n"), []byte("\r\n"))
	for _, c := range []struct {
		name  string
		files []File
	}{
		{"100k_rules_in_one_file", []File{{Name: "rules.yaml", Data: generate("bench", 1000, 100)}}},
		{"100k_rules_in_one_file_uncut", []File{{Name: "rules.yaml", Data: whole}}},
		{"100k_rules_in_ten_files", tenFiles},
		{"10k_rules_in_one_file", []File{{Name: "rules.yaml", Data: generate("bench", 100, 100)}}},
	} {
		b.Run(c.name, func(b *testing.B) {
			size, want := 0, 0
			for _, f := range c.files {
				size += len(f.Data)
				want += bytes.Count(f.Data, []byte("rate_limit:"))
			}
			b.SetBytes(int64(size))
			b.ReportAllocs()
			for b.Loop() {
				tree, errs := Compile(c.files, CompileOptions{})
				if len(errs) > 0 || len(tree.Rules) != want {
					b.Fatal(len(tree.Rules), errs)
				}
			}
		})
	}
}
