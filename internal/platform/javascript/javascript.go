package javascript

import "embed"

// Files has a folder per library, with its licence.
//
//go:embed preact htm signals uplot
var Files embed.FS

// Text returns a file as text. It panics if there is none: names are fixed when the program is built.
func Text(name string) string {
	b, err := Files.ReadFile(name)
	if err != nil {
		panic(err)
	}
	return string(b)
}
