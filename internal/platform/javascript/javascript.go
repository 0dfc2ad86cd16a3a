package javascript

import "embed"

// Files contains a directory per library, with its licence.
//
//go:embed preact htm signals uplot
var Files embed.FS
