"""The gate inside other people's trainers; each module needs the extra of its name, such as `kondo[trl]`."""
