"""What a run is like, for a person: report.html, and several runs side by side. It trains nothing and changes no run."""
