"""The papers that a card cites, by the name of their method."""

PAPERS = {
    "CMLM-CSE": """@article{zhang2023cmlmcse,
  title   = {CMLM-CSE: Based on Conditional MLM Contrastive Learning for Sentence Embeddings},
  author  = {Zhang, Wei and Chen, Xu},
  journal = {arXiv preprint arXiv:2306.09594},
  year    = {2023}
}""",
    "InfoCSE": """@inproceedings{wu2022infocse,
  title     = {{InfoCSE}: Information-aggregated Contrastive Learning of Sentence Embeddings},
  author    = {Wu, Xing and Gao, Chaochen and Lin, Zijia and Han, Jizhong and Wang, Zhongyuan and Hu, Songlin},
  booktitle = {Findings of EMNLP},
  year      = {2022}
}""",
    "DiffCSE": """@inproceedings{chuang2022diffcse,
  title     = {{DiffCSE}: Difference-based Contrastive Learning for Sentence Embeddings},
  author    = {Chuang, Yung-Sung and others},
  booktitle = {NAACL},
  year      = {2022}
}""",
    "CLEAR": """@article{wu2020clear,
  title  = {{CLEAR}: Contrastive Learning for Sentence Representation},
  author = {Wu, Zhuofeng and Wang, Sinong and Gu, Jiatao and Khabsa, Madian and Sun, Fei and Ma, Hao},
  year   = {2020}
}""",
    "SimCSE++": """@inproceedings{xu2023simcsepp,
  title     = {{SimCSE++}: Improving Contrastive Learning for Sentence Embeddings from Two Perspectives},
  author    = {Xu, Jiahao and Shao, Wei and Chen, Lihui and Liu, Lemao},
  booktitle = {EMNLP},
  year      = {2023}
}""",
    "RankCSE": """@inproceedings{liu2023rankcse,
  title     = {{RankCSE}: Unsupervised Sentence Representations Learning via Learning to Rank},
  author    = {Liu, Jiduan and Liu, Jiahao and Wang, Qifan and Wang, Jingang and Wu, Wei and Xian, Yunsen and
               Zhao, Dongyan and Chen, Kai and Yan, Rui},
  booktitle = {ACL},
  year      = {2023}
}""",
    "PromptBERT": """@inproceedings{jiang2022promptbert,
  title     = {{PromptBERT}: Improving {BERT} Sentence Embeddings with Prompts},
  author    = {Jiang, Ting and Jiao, Jian and Huang, Shaohan and Zhang, Zihan and others},
  booktitle = {EMNLP},
  year      = {2022}
}""",
    "CoT-BERT": """@inproceedings{zhang2024cotbert,
  title     = {{CoT-BERT}: Enhancing Unsupervised Sentence Representation through Chain-of-Thought},
  author    = {Zhang, Bowen and Chang, Kehua and Li, Chunping},
  booktitle = {ICANN},
  year      = {2024}
}""",
    "CoSENT": """@article{huang2024cosent,
  title   = {{CoSENT}: Consistent Sentence Embedding via Similarity Ranking},
  author  = {Huang, Xiang and Peng, Hao and Zou, Dongcheng and Liu, Zhiwei and Li, Jianxin and Liu, Kay and Wu, Jia and
             Su, Jianlin and Yu, Philip S.},
  journal = {IEEE/ACM Transactions on Audio, Speech, and Language Processing},
  year    = {2024}
}""",
    "RetroMAE": """@inproceedings{xiao2022retromae,
  title     = {{RetroMAE}: Pre-Training Retrieval-oriented Language Models Via Masked Auto-Encoder},
  author    = {Xiao, Shitao and Liu, Zheng and Shao, Yingxia and Cao, Zhao},
  booktitle = {EMNLP},
  year      = {2022}
}""",
    "Condenser": """@inproceedings{gao2021condenser,
  title     = {Condenser: a Pre-training Architecture for Dense Retrieval},
  author    = {Gao, Luyu and Callan, Jamie},
  booktitle = {EMNLP},
  year      = {2021}
}""",
    "DenoSent": """@inproceedings{wang2024denosent,
  title     = {{DenoSent}: A Denoising Objective for Self-Supervised Sentence Representation Learning},
  author    = {Wang, Xinghao and He, Junliang and Wang, Pengyu and Zhou, Yunhua and Sun, Tianxiang and Qiu, Xipeng},
  booktitle = {AAAI},
  year      = {2024}
}""",
    "Matryoshka": """@inproceedings{kusupati2022matryoshka,
  title     = {Matryoshka Representation Learning},
  author    = {Kusupati, Aditya and others},
  booktitle = {NeurIPS},
  year      = {2022}
}""",
    "SimCSE": """@inproceedings{gao2021simcse,
  title     = {{SimCSE}: Simple Contrastive Learning of Sentence Embeddings},
  author    = {Gao, Tianyu and Yao, Xingcheng and Chen, Danqi},
  booktitle = {EMNLP},
  year      = {2021}
}""",
}
