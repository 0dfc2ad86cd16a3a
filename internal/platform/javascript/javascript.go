package javascript

import "embed"

// Files has a folder per library, with its licence.
//
//go:embed preact htm signals
var Files embed.FS
