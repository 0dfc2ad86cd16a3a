// Package entries reads and writes the entries of a descriptor as people write them: as text, key=value,key2=value2,
// and in YAML files as that text or as a list of maps.
package entries
